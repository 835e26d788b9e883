"""What a server returns of hidden states itself is the same with capture on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.answers import timeless
from harness.captures import wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from harness.tiny_model import HIDDEN

LAYERS = [-1, 1, 3, 5]
LENGTHS = [1, 16, 37]
NEW_TOKENS = 3

AUX = ("--enable-return-aux-hidden-states", "--speculative-algorithm")
IDS = "--return-aux-hidden-state-layer-ids"


@pytest.fixture
def ask(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> Callable[[list[str], list[bool], bool], dict[str, Any]]:
    """Serve, with capture or without, and ask for states in each of some ways."""

    def asked(arguments: list[str], ways: list[bool], captured: bool) -> dict[str, Any]:
        environment = {
            "SGLANG_HS_DUMP_DIR": str(tmp_path / "dump"),
            "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
            "SGLANG_HS_BUFFER": "16M",
        }
        config = ServerConfig(model, environment if captured else {}, arguments=arguments)
        with serve(zygote, config) as server:
            return {
                f"{way}-{length}": timeless(
                    generate(
                        server.url,
                        prompt(length, length),
                        f"{way}-{length}",
                        max_new_tokens=NEW_TOKENS,
                        # A key of its own keeps the prompts of one way out of the next one's cache.
                        extra_key=str(way),
                        return_hidden_states=way,
                    )
                )
                for way in ways
                for length in LENGTHS
            }

    return asked


@pytest.mark.parametrize(
    ("arguments", "ways", "width"),
    [
        (["--enable-return-hidden-states"], [False, True], HIDDEN),
        # SGLang's own HTTP interface takes no request for the last state alone.
        (["--return-hidden-states-mode", "last"], [False], HIDDEN),
        # SGLang's three layers of EAGLE-3, its own ids of others, and ids as DFLASH writes them.
        ([*AUX, "EAGLE3"], [False, True], 3 * HIDDEN),
        ([*AUX, "EAGLE3", IDS, "2", "3", "6", "7"], [True], 4 * HIDDEN),
        ([*AUX, "DFLASH", IDS, "1", "5"], [True], 2 * HIDDEN),
    ],
    ids=["full", "last", "aux-eagle3", "aux-eagle3-ids", "aux-dflash"],
)
def test_the_payload_is_the_same(
    ask: Callable[[list[str], list[bool], bool], dict[str, Any]],
    tmp_path: Path,
    reference: Reference,
    arguments: list[str],
    ways: list[bool],
    width: int,
) -> None:
    """Every number that is returned is equal, and what is captured equals transformers."""
    off, on = ask(arguments, ways, False), ask(arguments, ways, True)
    assert on == off
    for rid, answer in on.items():
        states = answer["meta_info"].get("hidden_states")
        assert (states is None) == rid.startswith("False")
        if states is not None:
            assert len(states) == NEW_TOKENS
            assert len(states[-1]) == width
    store = wait_for(tmp_path / "dump", on)
    assert len(store) == len(on)
    for rid in on:
        length = int(rid.rpartition("-")[2])
        assert_exact(store[rid], prompt(length, length), reference, LAYERS)
