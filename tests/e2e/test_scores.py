"""Requests to /v1/score, which SGLang prefills like any other, unless they bring embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.captures import status, wait_for
from harness.client import generate, post
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from harness.tiny_model import HIDDEN
from hs_capture import open_store

LAYERS = [1, 3, 4]
LABELS = [20, 21]
PLACE = 7
"""The token in place of which an embedding is put."""


def _score(
    url: str, query: Sequence[int], items: Sequence[Sequence[int]], **more: object
) -> list[list[float]]:
    body = {"query": query, "items": items, "label_token_ids": LABELS, "apply_softmax": True}
    scores: list[list[float]] = post(f"{url}/v1/score", {**body, **more})["scores"]
    return scores


def test_scored_prompts_are_captured_but_for_those_with_embeddings(
    serve: Serve, zygote: Zygote, model: Path, reference: Reference, dump_dir: Path
) -> None:
    """Of ids with embeddings in their places nobody could compute the states again."""
    query, items = prompt(1, 12), [[30, 31, 32, 33], [40, 41, 42]]
    placed = [*(token for token in prompt(4, 9) if token != PLACE), PLACE, 3]
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    with serve(zygote, ServerConfig(model, environment)) as server:
        plain = _score(server.url, placed, items)
        override = {"embed_override_token_id": PLACE}
        embeddings = [[0.5] * HIDDEN]
        moved = _score(server.url, placed, items, query_embed_overrides=embeddings, **override)
        assert max(abs(a[0] - b[0]) for a, b in zip(plain, moved, strict=True)) > 1e-6
        _score(server.url, query, items)
        generate(server.url, prompt(6, 4), "last")
        wait_for(dump_dir, ["last"])
    store = open_store(dump_dir)
    expected = [[*start, *item] for start in (placed, query) for item in items]
    assert len(store) == 1 + len(expected) == status(dump_dir)["counters"]["captures"]
    for tokens in expected:
        (capture,) = store.find(tokens)
        assert_exact(capture, tokens, reference, LAYERS)
