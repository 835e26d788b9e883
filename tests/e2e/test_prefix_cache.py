"""Rows that SGLang takes from its prefix cache are not computed, and the capture says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.captures import wait_for
from harness.client import generate
from harness.compare import TOLERANCE, assert_exact, errors
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture import NotCapturedError

LAYERS = [1, 3, 4]


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server with SGLang's prefix cache on, as it is by default, and our default layers."""
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    with serve(zygote, ServerConfig(model, environment)) as server:
        yield server


@pytest.mark.parametrize(
    ("number", "length", "more", "computed"),
    [(1, 40, 0, 1), (2, 40, 3, 3), (3, 16, 30, 30)],
    ids=["the-same-prompt", "three-tokens-more", "two-chunks-more"],
)
def test_cached_rows_are_named_as_missing(
    server: Server,
    dump_dir: Path,
    reference: Reference,
    number: int,
    length: int,
    more: int,
    computed: int,
) -> None:
    """A hit makes the record incomplete, with the exact rows; those that are there are right."""
    tokens = prompt(number, length + more)
    rid = f"hit-{number}"
    generate(server.url, tokens[:length], f"first-{number}")
    answer = generate(server.url, tokens, rid)
    cached = length + more - computed
    assert answer["meta_info"]["cached_tokens"] == cached
    store = wait_for(dump_dir, [f"first-{number}", rid])
    assert_exact(store[f"first-{number}"], tokens[:length], reference, LAYERS)
    capture = store[rid]
    assert not capture.complete
    assert capture.incomplete_reason == "prefix_cache"
    assert capture.missing == [(0, cached)]
    assert capture.num_tokens == length + more
    assert capture.input_ids.tolist() == tokens
    found = errors(capture, tokens, reference, rows=(cached, length + more))
    assert set(found) == {"layer.1", "layer.3", "layer.4", "final.pre_norm", "final.post_norm"}
    assert max(found.values()) <= TOLERANCE
    with pytest.raises(NotCapturedError, match="prefix_cache"):
        capture.aux_hidden_states()
    with pytest.raises(NotCapturedError, match="prefix_cache"):
        capture.last_hidden_states("pre_norm", rows=(cached - 1, cached + 1))


def test_a_key_of_its_own_makes_a_capture_complete(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The same prompt again, with an ``extra_key`` that nobody used, is computed as a whole."""
    tokens = prompt(10, 40)
    generate(server.url, tokens, "plain")
    answer = generate(server.url, tokens, "keyed", extra_key="nobody-else")
    assert answer["meta_info"]["cached_tokens"] == 0
    store = wait_for(dump_dir, ["plain", "keyed"])
    assert_exact(store["keyed"], tokens, reference, LAYERS)
