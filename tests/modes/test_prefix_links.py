"""Whose rows a cached prefix has, where slots of the KV cache change hands all the time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.captures import status, wait_for
from harness.client import generate, generate_concurrently, get
from harness.compare import TOLERANCE, assert_exact, assert_linked, errors
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture.intervals import subtract

LAYERS = [1, 3, 4]
WRONG = ("hook_errors", "writer_errors", "rows_dropped", "rows_late")


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server with room for a few prompts, that captures some of what it is sent."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
        "SGLANG_HS_RIDS": "wanted-*",
    }
    arguments = ("--max-total-tokens", "300")
    with serve(zygote, ServerConfig(model, environment, arguments=arguments)) as server:
        yield server


def test_rows_of_who_is_not_captured_are_nobodys(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Also where another prompt's rows, which were captured, are in the cache before them."""
    tokens = prompt(1, 60)
    generate(server.url, tokens[:20], "wanted-beginning")
    generate(server.url, tokens[:50], "other-middle")
    generate(server.url, tokens, "wanted-whole")
    store = wait_for(dump_dir, ["wanted-beginning", "wanted-whole"])
    sources = [(0, 20, "wanted-beginning")]
    assert_linked(store["wanted-whole"], tokens, reference, LAYERS, sources, [(20, 50)])
    assert "other-middle" not in store


def test_a_slot_that_another_has_written_since_has_no_name(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The emptied cache gives out the same slots again, to a prompt with other states.

    It is not captured, and differs in its first token alone.
    """
    first, *rest = prompt(10, 50)
    other = [first + 1, *rest]
    get(f"{server.url}/flush_cache")
    generate(server.url, [first, *rest], "wanted-before")
    get(f"{server.url}/flush_cache")
    generate(server.url, other, "other-after")
    hit = [*other, *prompt(12, 9)]
    answer = generate(server.url, hit, "wanted-hit")
    assert answer["meta_info"]["cached_tokens"] == 50
    store = wait_for(dump_dir, ["wanted-before", "wanted-hit"])
    assert_linked(store["wanted-hit"], hit, reference, LAYERS, [], [(0, 50)])


def test_no_row_of_an_earlier_owner_of_a_slot_is_handed_out(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Prompts with a few beginnings push each other out of the cache, captured and not captured.

    Whatever a capture says that it has is compared with transformers, row by row.
    """
    # They differ in their first token alone, so that a row of another has the same place and token.
    _, *rest = prompt(100, 80)
    beginnings = [[*prompt(101 + i, 1), *rest[: 29 + 7 * i]] for i in range(6)]
    choose = random.Random(11)
    sent: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    for wave in range(40):
        requests = {}
        for i in range(choose.choice([1, 1, 2, 3])):
            beginning = choose.choice(beginnings)
            tokens = [*beginning, *prompt(200 + 5 * wave + i, choose.randint(1, 25))]
            who = "wanted" if choose.random() < 0.7 else "other"
            requests[f"{who}-{wave}-{i}"] = tokens
        answers = generate_concurrently(
            server.url, requests.items(), at_once=3, max_new_tokens=choose.choice([1, 4])
        )
        sent |= {rid: tokens for rid, tokens in requests.items() if rid.startswith("wanted")}
        cached |= {rid: a["meta_info"]["cached_tokens"] for rid, a in answers.items()}
    store = wait_for(dump_dir, sent)
    entries = {entry.rid: entry for entry in store.entries()}
    linked = incomplete = 0
    for rid, tokens in sent.items():
        capture = store[rid]
        assert entries[rid].rows == len(tokens) - cached[rid]
        assert capture.metadata["missing"] == ([[0, cached[rid]]] if cached[rid] else [])
        linked += bool(capture.metadata["sources"])
        if capture.complete:
            assert_exact(capture, tokens, reference, LAYERS)
            continue
        incomplete += 1
        assert capture.incomplete_reason == "prefix_cache"
        for rows in subtract((0, len(tokens)), capture.missing):
            assert max(errors(capture, tokens, reference, rows=rows).values()) <= TOLERANCE, rid
    # The same beginning was computed again after it had been pushed out, and by both kinds.
    assert linked >= 10
    assert incomplete >= 3
    computed = [rid for rid, tokens in sent.items() if cached[rid] == 0]
    assert len(computed) > 2 * len(beginnings)
    counters = status(dump_dir)["counters"]
    assert {name: counters[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
