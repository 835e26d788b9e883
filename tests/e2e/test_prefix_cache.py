"""Rows that SGLang takes from its prefix cache are not computed: they are another capture's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hs_capture
from harness.captures import wait_for
from harness.client import generate
from harness.compare import TOLERANCE, assert_exact, assert_linked, errors
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture import NotCapturedError

LAYERS = [1, 3, 4]
ROW_BYTES = 4 * 128 * 4
"""Three layers and the final state, of 128 float32."""


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
def test_cached_rows_are_those_of_who_computed_them(
    server: Server,
    dump_dir: Path,
    reference: Reference,
    number: int,
    length: int,
    more: int,
    computed: int,
) -> None:
    """A hit stores the rows that it computed; the others are in the first capture's file."""
    tokens = prompt(number, length + more)
    first, rid = f"first-{number}", f"hit-{number}"
    generate(server.url, tokens[:length], first)
    answer = generate(server.url, tokens, rid)
    cached = length + more - computed
    assert answer["meta_info"]["cached_tokens"] == cached
    store = wait_for(dump_dir, [first, rid])
    assert_exact(store[first], tokens[:length], reference, LAYERS)
    assert_linked(store[rid], tokens, reference, LAYERS, [(0, cached, first)])
    entry = next(entry for entry in store.entries() if entry.rid == rid)
    assert (entry.rows, entry.raw_bytes) == (computed, computed * ROW_BYTES)


def test_rows_are_missing_once_their_source_is_gone(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    tokens = prompt(5, 40)
    generate(server.url, tokens, "source")
    generate(server.url, tokens, "dependent")
    store = wait_for(dump_dir, ["source", "dependent"])
    opened_before = store["dependent"]
    assert_linked(opened_before, tokens, reference, LAYERS, [(0, 39, "source")])
    store["source"].path.unlink()
    with pytest.raises(FileNotFoundError, match=r"rid 'source', which is gone; open the store"):
        opened_before.aux_hidden_states()
    capture = hs_capture.open_store(dump_dir)["dependent"]
    assert not capture.complete
    assert capture.incomplete_reason == "source_gone"
    assert capture.missing == [(0, 39)]
    assert capture.num_tokens == 40
    assert capture.input_ids.tolist() == tokens
    assert capture.metadata["sources"] == []
    found = errors(capture, tokens, reference, rows=(39, 40))
    assert set(found) == {"layer.1", "layer.3", "layer.4", "final.pre_norm", "final.post_norm"}
    assert max(found.values()) <= TOLERANCE
    with pytest.raises(NotCapturedError, match="source_gone"):
        capture.aux_hidden_states()
    with pytest.raises(NotCapturedError, match="source_gone"):
        capture.last_hidden_states("pre_norm", rows=(38, 40))


def test_a_key_of_its_own_makes_a_capture_whole(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The same prompt again, with an ``extra_key`` that nobody used, is computed as a whole."""
    tokens = prompt(10, 40)
    generate(server.url, tokens, "plain")
    answer = generate(server.url, tokens, "keyed", extra_key="nobody-else")
    assert answer["meta_info"]["cached_tokens"] == 0
    store = wait_for(dump_dir, ["plain", "keyed"])
    assert_exact(store["keyed"], tokens, reference, LAYERS)
    assert store["keyed"].metadata["sources"] == []
