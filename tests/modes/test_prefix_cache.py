"""With SGLang's prefix cache on, each capture names its rows, and whose the others are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.captures import wait_for
from harness.client import RefusedError, generate, generate_concurrently, post
from harness.compare import assert_exact, assert_linked
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [1, 3, 4]
Turn = tuple[list[int], list[tuple[int, int, str]], list[tuple[int, int]]]
"""A prompt, which of its rows are whose, and which are nobody's."""


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server with a prefix cache and sessions, and chunks of 16 tokens."""
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    arguments = ("--enable-streaming-session",)
    with serve(zygote, ServerConfig(model, environment, arguments=arguments)) as server:
        yield server


def cached(answer: dict[str, Any]) -> int:
    """Return how many tokens SGLang says it had in its cache."""
    return int(answer["meta_info"]["cached_tokens"])


def test_turns_of_a_chat_have_all_rows_but_those_of_answers(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The cache holds each turn's prompt and answer, all but the answer's last token.

    A turn computes what comes from then on. Answers are generated, and nobody captures them.
    """
    tokens: list[int] = []
    turns: dict[str, Turn] = {}
    sources: list[tuple[int, int, str]] = []
    missing: list[tuple[int, int]] = []
    have = 0
    for turn in range(4):
        tokens = [*tokens, *prompt(10 + turn, 7 + 12 * turn)]
        rid = f"turn-{turn}"
        answer = generate(server.url, tokens, rid, max_new_tokens=5)
        assert cached(answer) == have
        turns[rid] = (tokens, [*sources], [*missing])
        sources.append((have, len(tokens), rid))
        have = len(tokens) + 4
        missing.append((len(tokens), have))
        tokens = [*tokens, *answer["output_ids"]]
    store = wait_for(dump_dir, turns)
    for rid, (sent, elsewhere, nowhere) in turns.items():
        assert_linked(store[rid], sent, reference, LAYERS, elsewhere, nowhere)


def test_turns_after_answers_of_one_token_are_complete(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """As where a chat is replayed: the only token of an answer is computed with the next turn."""
    tokens: list[int] = []
    turns: dict[str, Turn] = {}
    sources: list[tuple[int, int, str]] = []
    for turn in range(4):
        tokens = [*tokens, *prompt(5 + turn, 20 + 9 * turn)]
        rid = f"replayed-{turn}"
        answer = generate(server.url, tokens, rid)
        have = sources[-1][1] if sources else 0
        assert cached(answer) == have
        turns[rid] = (tokens, [*sources], [])
        sources.append((have, len(tokens), rid))
        tokens = [*tokens, *answer["output_ids"]]
    store = wait_for(dump_dir, turns)
    for rid, (sent, elsewhere, _) in turns.items():
        assert_linked(store[rid], sent, reference, LAYERS, elsewhere)


def test_a_shared_system_prompt_is_captured_once(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Those who come later compute the rows of what they ask; the others are the first's."""
    system = prompt(20, 53)
    prompts = [(f"user-{i}", [*system, *prompt(21 + i, 1 + 5 * i)]) for i in range(10)]
    first, *others = prompts
    generate(server.url, first[1], first[0])
    answers = generate_concurrently(server.url, others, at_once=len(others), max_new_tokens=3)
    store = wait_for(dump_dir, [rid for rid, _ in prompts])
    assert_exact(store[first[0]], first[1], reference, LAYERS)
    for rid, tokens in others:
        assert cached(answers[rid]) == len(system)
        assert_linked(store[rid], tokens, reference, LAYERS, [(0, len(system), first[0])])
    rows = {entry.rid: entry.rows for entry in store.entries()}
    assert [rows[rid] for rid, _ in others] == [len(tokens) - len(system) for _, tokens in others]


def test_a_shared_beginning_that_nobody_has_yet(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """All at once, and again: some compute it and some wait for them; each has all of it."""
    system = prompt(40, 45)
    prompts = [(f"burst-{i}", [*system, *prompt(41 + i % 6, 20)]) for i in range(12)]
    answers = generate_concurrently(server.url, prompts, at_once=len(prompts))
    store = wait_for(dump_dir, [rid for rid, _ in prompts])
    found = {rid: cached(answer) for rid, answer in answers.items()}
    assert 0 in found.values()
    assert max(found.values()) >= len(system)
    own = {entry.rid: entry.rows for entry in store.entries()}
    for rid, tokens in prompts:
        assert_exact(store[rid], tokens, reference, LAYERS)
        assert own[rid] == len(tokens) - found[rid]


def test_an_exact_repeat_has_one_row(server: Server, dump_dir: Path, reference: Reference) -> None:
    """SGLang computes at least the last token of a prompt; the others are always the first's."""
    tokens = prompt(60, 37)
    for i in range(3):
        generate(server.url, tokens, f"repeat-{i}")
    store = wait_for(dump_dir, [f"repeat-{i}" for i in range(3)])
    assert_exact(store["repeat-0"], tokens, reference, LAYERS)
    for rid in ("repeat-1", "repeat-2"):
        assert_linked(store[rid], tokens, reference, LAYERS, [(0, 36, "repeat-0")])


@pytest.mark.parametrize(("number", "name"), [(70, "extra_key"), (71, "cache_salt")])
def test_a_key_parts_the_cache(
    server: Server, dump_dir: Path, reference: Reference, number: int, name: str
) -> None:
    """What was computed under one key is not there under another."""
    tokens = prompt(number, 33)
    sent = [("none", {}), ("a", {name: "a"}), ("b", {name: "b"}), ("a-again", {name: "a"})]
    for who, key in sent:
        answer = generate(server.url, tokens, f"{name}-{who}", **key)
        assert cached(answer) == (32 if who == "a-again" else 0)
    store = wait_for(dump_dir, [f"{name}-{who}" for who, _ in sent])
    for who in ("none", "a", "b"):
        assert_exact(store[f"{name}-{who}"], tokens, reference, LAYERS)
    again = store[f"{name}-a-again"]
    assert_linked(again, tokens, reference, LAYERS, [(0, 32, f"{name}-a")])


@pytest.mark.parametrize(
    ("number", "start", "taken"), [(80, 0, 0), (81, 10, 10), (82, 35, 35), (83, -1, 39)]
)
def test_logprobs_of_the_prompt_have_their_rows_computed(
    server: Server, dump_dir: Path, reference: Reference, number: int, start: int, taken: int
) -> None:
    """From ``logprob_start_len`` on a prompt is computed whatever is in the cache."""
    tokens = prompt(number, 40)
    generate(server.url, tokens, f"before-{number}")
    answer = generate(
        server.url, tokens, f"logprobs-{number}", return_logprob=True, logprob_start_len=start
    )
    assert cached(answer) == taken
    store = wait_for(dump_dir, [f"before-{number}", f"logprobs-{number}"])
    sources = [(0, taken, f"before-{number}")] if taken else []
    assert_linked(store[f"logprobs-{number}"], tokens, reference, LAYERS, sources)


@pytest.mark.parametrize(("number", "streaming"), [(90, False), (100, True)])
def test_a_turn_of_a_session_has_the_rows_that_it_adds(
    server: Server, dump_dir: Path, reference: Reference, number: int, streaming: bool
) -> None:
    """A client sends only what is new; the capture's prompt is the whole of it.

    The rows of earlier turns are in their captures, but for those of answers.
    """
    session = post(
        f"{server.url}/open_session", {"capacity_of_str_len": 1000, "streaming": streaming}
    )
    tokens: list[int] = []
    turns: dict[str, Turn] = {}
    sources: list[tuple[int, int, str]] = []
    missing: list[tuple[int, int]] = []
    have = 0
    last = None
    for turn in range(3):
        new = prompt(number + turn, 18)
        rid = f"session-{number}-{turn}"
        answer = generate(
            server.url,
            new,
            rid,
            max_new_tokens=4,
            session_params={"id": session, "rid": last},
        )
        tokens = [*tokens, *new]
        turns[rid] = (tokens, [*sources], [*missing])
        sources.append((have, len(tokens), rid))
        have = len(tokens) + 3
        missing.append((len(tokens), have))
        last = rid
        tokens = [*tokens, *answer["output_ids"]]
    store = wait_for(dump_dir, turns)
    for rid, (sent, elsewhere, nowhere) in turns.items():
        assert len(store.captures(rid)) == 1
        assert_linked(store[rid], sent, reference, LAYERS, elsewhere, nowhere)
    post_nothing(server, session)


def test_a_refused_request_is_not_captured(server: Server, dump_dir: Path) -> None:
    """SGLang computes a token that nobody sent, to answer it; that is no prompt of anybody."""
    for tokens in (prompt(110, 1), prompt(111, 20)):
        with pytest.raises(RefusedError, match="no-such-session"):
            generate(
                server.url,
                tokens,
                f"refused-{len(tokens)}",
                session_params={"id": "no-such-session"},
            )
    generate(server.url, prompt(112, 5), "after-refused")
    store = wait_for(dump_dir, ["after-refused"])
    assert not {"refused-1", "refused-20"} & set(store.rids())


def post_nothing(server: Server, session: str) -> None:
    """Close a session. The server answers with an empty body."""
    with pytest.raises(ValueError, match="Expecting value"):
        post(f"{server.url}/close_session", {"session_id": session})
