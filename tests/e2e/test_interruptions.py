"""Requests and servers that end early: what was captured is kept, and says what it lacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from harness import processes
from harness.captures import PUBLISH_SECONDS, status, wait_for
from harness.client import RefusedError, abort, generate
from harness.compare import TOLERANCE, assert_exact, errors
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import AFTERLIFE_SECONDS, Serve, Server, ServerConfig
from hs_capture import Capture, open_store

LAYERS = [1, 3, 4]
LONG = 3000


def _config(model: Path, dump_dir: Path) -> ServerConfig:
    return ServerConfig(
        model,
        {
            "SGLANG_HS_DUMP_DIR": str(dump_dir),
            "SGLANG_HS_BUFFER": "16M",
            "SGLANG_HS_RIDS": "keep-*",
        },
    )


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server that captures requests with a rid like ``keep-*`` alone."""
    with serve(zygote, _config(model, dump_dir)) as server:
        yield server


def test_only_matching_rids_are_captured(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Requests that the pattern leaves out leave nothing; the others are whole."""
    for i, rid in enumerate(["skip-0", "keep-0", "KEEP-0", "keep-1", "a-keep-2"]):
        generate(server.url, prompt(i, 20), rid)
    store = wait_for(dump_dir, ["keep-0", "keep-1"])
    assert not {"skip-0", "KEEP-0", "a-keep-2"} & set(store.rids())
    assert_exact(store["keep-0"], prompt(1, 20), reference, LAYERS)
    assert_exact(store["keep-1"], prompt(3, 20), reference, LAYERS)


def test_an_aborted_request_is_incomplete(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The chunks that were computed before the abort are there, and the rest is named."""
    tokens = prompt(50, LONG)
    request = _in_background(server, tokens, "keep-aborted")
    _wait_for_open_record(dump_dir)
    abort(server.url, "keep-aborted")
    request.join(60)
    # SGLang tells nobody of an abort; it shows when SGLang has let go of the request, which it
    # does while it works on the next ones.
    for i in range(3):
        generate(server.url, prompt(51 + i, 5), f"keep-after-{i}")
    capture = wait_for(dump_dir, ["keep-aborted"])["keep-aborted"]
    assert capture.incomplete_reason == "aborted"
    _assert_a_part_is_exact(capture, tokens, reference)


def test_a_killed_server_loses_only_what_was_not_computed(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path, reference: Reference
) -> None:
    """The writer outlives the server by seconds: it finishes, closes what is open, and ends.

    What is open when the server is killed is the long request alone, so the others come first.
    """
    dump_dir = tmp_path / "dump"
    short = {f"keep-{i}": prompt(60 + i, 5 + i) for i in range(10)}
    tokens = prompt(80, LONG)
    with serve(zygote, _config(model, dump_dir)) as server:
        for rid, prompt_tokens in short.items():
            generate(server.url, prompt_tokens, rid)
        wait_for(dump_dir, short)
        request = _in_background(server, tokens, "keep-long")
        _wait_for_open_record(dump_dir)
        server.kill(spare_the_writer=True)
        request.join(60)
        assert processes.wait_until_gone(server.pid, server.mark, AFTERLIFE_SECONDS) == []
    store = open_store(dump_dir)
    assert set(store.rids()) == {*short, "keep-long"}
    for rid, prompt_tokens in short.items():
        assert_exact(store[rid], prompt_tokens, reference, LAYERS)
    assert store["keep-long"].incomplete_reason
    _assert_a_part_is_exact(store["keep-long"], tokens, reference)
    assert status(dump_dir)["state"] == "ended"
    assert not list(dump_dir.rglob("*.part"))


def _in_background(server: Server, tokens: list[int], rid: str) -> threading.Thread:
    def send() -> None:
        # The connection of a killed server breaks; that is what the test is about.
        with suppress(OSError, HTTPException, RefusedError):
            generate(server.url, tokens, rid)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def _wait_for_open_record(dump_dir: Path) -> None:
    """Wait until the writer has rows of a request that is not finished."""
    deadline = time.monotonic() + PUBLISH_SECONDS
    while not list(dump_dir.glob("*/open/*.part")):
        assert time.monotonic() < deadline, "no request was begun"
        time.sleep(0.02)


def _assert_a_part_is_exact(capture: Capture, tokens: list[int], reference: Reference) -> None:
    assert not capture.complete
    ((start, stop),) = capture.missing
    assert stop == LONG
    assert 0 < start < LONG
    assert start % 16 == 0
    assert max(errors(capture, tokens, reference, rows=(0, start)).values()) <= TOLERANCE
