"""Several answers to one prompt: SGLang runs the prompt under rids of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.captures import wait_for, wait_until
from harness.client import post
from harness.compare import assert_exact, assert_linked
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture import Capture, open_store

LAYERS = [1, 3, 4]


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server with a prefix cache, and chunks of 16 tokens."""
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    with serve(zygote, ServerConfig(model, environment)) as server:
        yield server


def sample(server: Server, prompts: Any, rid: Any, n: int) -> list[dict[str, Any]]:
    """Return ``n`` answers to each prompt."""
    parameters = {"n": n, "max_new_tokens": 4, "temperature": 1.0, "ignore_eos": True}
    body = {"input_ids": prompts, "rid": rid, "sampling_params": parameters}
    return list(post(f"{server.url}/generate", body, timeout=120))


def found(dump_dir: Path, tokens: list[int], count: int) -> list[Capture]:
    """Return the captures of a prompt once there are so many."""
    wait_for(dump_dir, [])
    return wait_until(lambda: open_store(dump_dir).find(tokens), lambda seen: len(seen) >= count)


def test_a_prompt_with_two_answers_is_found_by_its_tokens(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Each is a capture: the whole prompt, and each answer's, with a row of the last token alone.

    All other rows are those of the first.
    """
    tokens = prompt(1, 45)
    answers = sample(server, tokens, "user", 2)
    whole, *others = found(dump_dir, tokens, 3)
    assert_exact(whole, tokens, reference, LAYERS)
    assert len(others) == 2
    for capture in others:
        assert_linked(capture, tokens, reference, LAYERS, [(0, 44, whole.rid)])
    # The rids of the answers are known to the user, the one of the whole prompt is not.
    assert {c.rid for c in others} == {answer["meta_info"]["id"] for answer in answers}
    assert not [rid for rid in open_store(dump_dir).rids() if rid.startswith("user")]
    ids = open_store(dump_dir)[answers[0]["meta_info"]["id"]].input_ids
    assert {c.rid for c in open_store(dump_dir).find(ids)} == {whole.rid, *(c.rid for c in others)}


def test_a_batch_of_prompts_with_three_answers_each(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Each prompt is captured whole, once."""
    prompts = [prompt(10 + i, length) for i, length in enumerate([30, 7, 30, 1])]
    sample(server, prompts, [f"user-{i}" for i in range(4)], 3)
    for tokens in prompts:
        whole, *others = found(dump_dir, tokens, 4)
        assert_exact(whole, tokens, reference, LAYERS)
        assert len(others) == 3
        for capture in others:
            cached = [(0, len(tokens) - 1, whole.rid)] if len(tokens) > 1 else []
            assert_linked(capture, tokens, reference, LAYERS, cached)
