"""Requests that end before their prompt is computed, and requests that are nothing but a prompt."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.captures import run_folder, status, wait_for, wait_until
from harness.client import RefusedError, abort, generate
from harness.compare import TOLERANCE, assert_exact, errors
from harness.launching import Zygote
from harness.prompts import PROMPTS, prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture import Capture

LAYERS = [1, 3, 4]
CHUNK = 16
LONG = 1000
ABORTS = 1000
RECORD_SECONDS = 10.0
WRONG = ("hook_errors", "writer_errors", "rows_dropped", "rows_late", "open_records")


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server that drops what finds no room for a minute, and a writer that waits ten seconds for
    news."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "2M",
        "SGLANG_HS_BLOCK_TIMEOUT": "60",
        "HS_TEST_CONSTANT": f"hs_capture.writer.config:RECORD_SECONDS={RECORD_SECONDS}",
    }
    arguments = ("--disable-radix-cache",)
    config = ServerConfig(model, environment, chunk=CHUNK, arguments=arguments)
    with serve(zygote, config) as server:
        yield server


def test_a_prompt_without_an_answer_is_captured(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """``max_new_tokens=0`` computes the prompt and nothing else."""
    prompts = {f"none-{length}": prompt(length, length) for length in (1, CHUNK, 50)}
    for rid, tokens in prompts.items():
        assert generate(server.url, tokens, rid, max_new_tokens=0)["output_ids"] == []
    store = wait_for(dump_dir, prompts)
    for rid, tokens in prompts.items():
        assert len(store.captures(rid)) == 1
        assert_exact(store[rid], tokens, reference, LAYERS)


def test_an_aborted_request_on_an_idle_server_is_closed_after_a_while(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Nobody sends anything more, so SGLang keeps the request; its capture is published anyway."""
    tokens = prompt(100, LONG)
    begun = time.monotonic()
    _abort_midway(server, dump_dir, tokens, "idle")
    capture = wait_for(dump_dir, ["idle"])["idle"]
    assert time.monotonic() - begun >= RECORD_SECONDS
    _assert_begun(capture, tokens, reference)
    assert not list(dump_dir.glob("*/open/*"))


def test_a_rid_is_used_again_after_an_abort(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """The second request is another one: its rows are not taken for the rest of the first."""
    tokens, again = prompt(101, LONG), prompt(102, 60)
    _abort_midway(server, dump_dir, tokens, "again")
    generate(server.url, again, "again")
    generate(server.url, again[::-1], "again", max_new_tokens=0)
    captures = wait_for(dump_dir, ["again"] * 3).captures("again")
    assert len(captures) == 3
    (aborted,) = (capture for capture in captures if not capture.complete)
    _assert_begun(aborted, tokens, reference)
    second, third = (capture for capture in captures if capture.complete)
    assert_exact(second, again, reference, LAYERS)
    assert_exact(third, again[::-1], reference, LAYERS)


def test_a_thousand_aborts_leave_nothing_behind(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """No file, no descriptor in server or writer, no memory in the writer, no room in the ring.

    What the server itself remembers is tested without SGLang, whose own memory moves.
    """
    scheduler, writer = _processes(dump_dir)
    _abort_many(server, dump_dir, 0, 50)
    _wait_for_quiet(dump_dir)
    before = [_descriptors(scheduler), _descriptors(writer)]
    memory = _memory(writer)
    _abort_many(server, dump_dir, 50, ABORTS)
    counters = _wait_for_quiet(dump_dir)
    assert {name: counters[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert not list(dump_dir.glob("*/open/*"))
    assert [_descriptors(scheduler), _descriptors(writer)] == before
    # Each brings 64 kB or more.
    assert _memory(writer) - memory < 5e6
    # They brought several times what the ring holds; with room lost, rows would be dropped.
    tokens = prompt(103, 300)
    generate(server.url, tokens, "last")
    store = wait_for(dump_dir, ["last"])
    assert_exact(store["last"], tokens, reference, LAYERS)
    aborted = [capture for capture in store if capture.rid.startswith("abort-")]
    assert len(aborted) == ABORTS
    assert {capture.incomplete_reason for capture in aborted} == {"aborted"}
    for capture in aborted[:: ABORTS // 5]:
        number = int(capture.rid.removeprefix("abort-"))
        _assert_begun(capture, prompt(number % PROMPTS, LONG), reference)


def _abort_many(server: Server, dump_dir: Path, start: int, stop: int) -> None:
    for number in range(start, stop):
        _abort_midway(server, dump_dir, prompt(number % PROMPTS, LONG), f"abort-{number}")


def _abort_midway(server: Server, dump_dir: Path, tokens: list[int], rid: str) -> None:
    """Abort a request once the writer has rows of it, and wait for the answer."""
    earlier = _open_records(dump_dir)

    def send() -> None:
        with suppress(RefusedError):
            generate(server.url, tokens, rid)

    request = threading.Thread(target=send)
    request.start()
    deadline = time.monotonic() + 120
    while not _open_records(dump_dir) - earlier:
        assert time.monotonic() < deadline, f"{rid} was not begun"
        time.sleep(0.002)
    abort(server.url, rid)
    request.join(600)


def _open_records(dump_dir: Path) -> set[Path]:
    return set((run_folder(dump_dir) / "open").iterdir())


def _wait_for_quiet(dump_dir: Path) -> dict[str, int]:
    """Wait until no record is open, and return the counters."""
    return wait_until(
        lambda: dict(status(dump_dir)["counters"]),
        lambda seen: seen["open_records"] == 0 and not _open_records(dump_dir),
    )


def _processes(dump_dir: Path) -> tuple[int, int]:
    seen = wait_until(lambda: status(dump_dir), lambda seen: seen["state"] == "serving")
    return int(seen["server_pid"]), int(seen["writer_pid"])


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _memory(pid: int) -> int:
    """Return the private memory of a process in bytes; the ring, which is shared, not counted."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (size,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return 1024 * int(size)


def _assert_begun(capture: Capture, tokens: list[int], reference: Reference) -> None:
    """The first chunks are there and right, and the rest is named."""
    assert capture.incomplete_reason == "aborted"
    ((start, stop),) = capture.missing
    assert stop == LONG
    assert 0 < start < LONG
    assert start % CHUNK == 0
    assert max(errors(capture, tokens, reference, rows=(0, start)).values()) <= TOLERANCE
