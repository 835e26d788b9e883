"""How an answer may end: by a token, by its client, by an abort, with other answers beside it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness import processes
from harness.captures import status, wait_for, wait_until
from harness.client import RefusedError, abort, generate, post
from harness.compare import assert_exact
from harness.generated import assert_followed, assert_rows
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture import Capture, open_store

LAYERS = [1, 3, 4]
LONG = 400
"""Tokens of an answer that somebody ends: they take the server some seconds."""


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server with a prefix cache, chunks of 16 tokens, and little room in the ring."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_PHASES": "prefill,decode",
        "SGLANG_HS_BUFFER": "1M",
        "SGLANG_HS_ON_FULL": "drop",
    }
    with serve(zygote, ServerConfig(model, environment)) as server:
        yield server


def test_an_answer_ends_with_a_token(server: Server, dump_dir: Path, reference: Reference) -> None:
    """With overlap scheduling the token's own row is computed too; it is not of the answer."""
    tokens = prompt(1, 20)
    whole = generate(server.url, tokens, "whole", max_new_tokens=30)["output_ids"]
    stop = next(token for i, token in enumerate(whole) if i > 8 and token not in whole[:i])
    sampling = {"max_new_tokens": 30, "temperature": 0, "stop_token_ids": [stop]}
    answer = generate(server.url, tokens, "ended", sampling_params=sampling, extra_key="other")
    assert answer["output_ids"] == whole[: whole.index(stop) + 1]
    store = wait_for(dump_dir, ["whole", "ended"])
    assert_followed(store["whole"], tokens, whole, reference, LAYERS)
    assert_followed(store["ended"], tokens, answer["output_ids"], reference, LAYERS)


def test_an_answer_is_streamed(server: Server, dump_dir: Path, reference: Reference) -> None:
    tokens = prompt(2, 20)
    with _stream(server, tokens, "streamed", 40) as response:
        parts = [_said(line) for line in response if line.startswith(b"data: {")]
    store = wait_for(dump_dir, ["streamed"])
    assert len(parts[-1]) == 40
    assert_followed(store["streamed"], tokens, parts[-1], reference, LAYERS)


def test_a_client_goes_away(server: Server, dump_dir: Path, reference: Reference) -> None:
    """SGLang gives the request up; what it had generated until then is a capture of its own."""
    tokens = prompt(3, 20)
    with _stream(server, tokens, "left", LONG) as response:
        for _ in range(20):
            response.readline()
    capture = wait_for(dump_dir, ["left"])["left"]
    _assert_cut(server, capture, tokens, reference)


def test_an_answer_is_aborted(server: Server, dump_dir: Path, reference: Reference) -> None:
    """The client has what was generated, and the capture has the rows of all but the last."""
    tokens = prompt(4, 20)
    answers: list[dict[str, Any]] = []

    def send() -> None:
        answers.append(generate(server.url, tokens, "aborted", max_new_tokens=LONG))

    request = threading.Thread(target=send)
    request.start()
    _wait_for_rows(dump_dir, 60)
    abort(server.url, "aborted")
    request.join(600)
    capture = wait_for(dump_dir, ["aborted"])["aborted"]
    _assert_cut(server, capture, tokens, reference)
    said = answers[0]["output_ids"]
    assert answers[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert capture.input_ids.tolist()[20:] == said[: capture.num_tokens - 20]


def test_several_answers_to_a_prompt(server: Server, dump_dir: Path, reference: Reference) -> None:
    """The prompt is a capture, and each answer one that is linked to it for the cached rows."""
    tokens = prompt(5, 45)
    sampling = {"n": 2, "max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    body = {"input_ids": tokens, "rid": "user", "sampling_params": sampling}
    answers = post(f"{server.url}/generate", body, timeout=120)
    wait_for(dump_dir, [])
    found = wait_until(lambda: open_store(dump_dir).find(tokens), lambda seen: len(seen) >= 3)
    (whole,) = (capture for capture in found if capture.num_tokens == 45)
    assert_exact(whole, tokens, reference, LAYERS)
    for answer in answers:
        capture = open_store(dump_dir)[answer["meta_info"]["id"]]
        assert_followed(capture, tokens, answer["output_ids"], reference, LAYERS)
        assert _sources(capture) == [(whole.rid, 0, 44)]
        said = [*tokens, *answer["output_ids"][:-1]]
        assert [c.rid for c in open_store(dump_dir).find(said)] == [capture.rid]


def test_every_turn_of_a_chat_is_whole(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """What a turn has from the cache is linked to earlier turns: their prompts and answers."""
    tokens = prompt(9, 30)
    links: list[tuple[str, int, int]] = []
    for turn, (more, count) in enumerate([([], 20), ([5, 6, 7], 1), ([8, 9], 12)]):
        tokens = [*tokens, *more]
        answer = generate(server.url, tokens, f"turn-{turn}", max_new_tokens=count)
        said = answer["output_ids"]
        cached = answer["meta_info"]["cached_tokens"]
        capture = wait_for(dump_dir, [f"turn-{turn}"])[f"turn-{turn}"]
        assert_followed(capture, tokens, said, reference, LAYERS)
        assert cached == (links[-1][2] if links else 0)
        assert _sources(capture) == links
        tokens = [*tokens, *said]
        # The last token of an answer is not in the cache, as it was never run.
        links.append((f"turn-{turn}", cached, len(tokens) - 1))


def test_rows_that_find_no_room_are_named(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The writer stands still until the ring is full, in the middle of an answer."""
    tokens = prompt(6, 20)
    writer = _writer(server)
    answers: list[list[int]] = []

    def send() -> None:
        answers.append(generate(server.url, tokens, "full", max_new_tokens=900)["output_ids"])

    request = threading.Thread(target=send)
    request.start()
    _wait_for_rows(dump_dir, 60)
    os.kill(writer, signal.SIGSTOP)
    try:
        request.join(600)
    finally:
        os.kill(writer, signal.SIGCONT)
    capture = wait_for(dump_dir, ["full"])["full"]
    assert capture.incomplete_reason == "dropped"
    assert capture.missing
    assert capture.missing[0][0] > 80
    assert_rows(capture, [*tokens, *answers[0][:-1]], reference, capture.missing)


def test_the_writer_is_killed_in_the_middle_of_an_answer(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The loss is told, the rows after it are there, and the server goes on."""
    tokens, after = prompt(7, 20), prompt(8, 20)
    answers: list[list[int]] = []

    def send() -> None:
        answers.append(generate(server.url, tokens, "killed", max_new_tokens=LONG)["output_ids"])

    request = threading.Thread(target=send)
    request.start()
    _wait_for_rows(dump_dir, 60)
    os.kill(_writer(server), signal.SIGKILL)
    request.join(600)
    said = generate(server.url, after, "after", max_new_tokens=5)["output_ids"]
    store = wait_for(dump_dir, ["killed", "after"])
    assert_followed(store["after"], after, said, reference, LAYERS)
    capture = store["killed"]
    assert capture.incomplete_reason == "writer_died"
    ((start, stop),) = capture.missing
    assert start == 0
    assert 20 < stop < capture.num_tokens
    assert_rows(capture, [*tokens, *answers[0][:-1]], reference, [(0, stop)])


def _sources(capture: Capture) -> list[tuple[str, int, int]]:
    return [(s["rid"], s["start"], s["stop"]) for s in capture.metadata["sources"]]


def _stream(server: Server, tokens: list[int], rid: str, count: int) -> Any:
    sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": tokens, "rid": rid, "sampling_params": sampling, "stream": True}
    request = urllib.request.Request(
        f"{server.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=600)


def _said(line: bytes) -> list[int]:
    """The tokens in one part of a streamed answer: all so far."""
    return list(json.loads(line.removeprefix(b"data: "))["output_ids"])


def _assert_cut(server: Server, capture: Capture, tokens: list[int], reference: Reference) -> None:
    """A capture that ends early is complete, and its tokens are those of the whole answer."""
    count = capture.num_tokens - len(tokens)
    assert 10 < count < LONG - 1
    with suppress(RefusedError):
        whole = generate(server.url, tokens, None, max_new_tokens=count, extra_key=capture.rid)
    assert_exact(capture, [*tokens, *whole["output_ids"]], reference, LAYERS)
    assert capture.prompt_tokens == len(tokens)


def _wait_for_rows(dump_dir: Path, more: int) -> None:
    """Wait until the running request has brought so many rows."""
    # What the status file has not told yet of earlier requests is none of this one's.
    asked = time.time()
    told = wait_until(lambda: status(dump_dir), lambda seen: seen["heartbeat"] > asked)
    before = told["counters"]["rows_taken"]
    wait_until(
        lambda: status(dump_dir)["counters"]["rows_taken"], lambda seen: seen >= before + more
    )


def _writer(server: Server) -> int:
    """The process id of the one writer; what starts one leads the session it is in."""

    def look() -> list[int]:
        found = processes.of_server(server.pid, server.mark)
        return [p.pid for p in found if p.session not in (server.pid, p.pid)]

    (pid,) = wait_until(look, lambda seen: len(seen) == 1)
    return pid
