"""A real server whose writer stands still, dies, or finds its file system full."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capture_server import WRITER_HOST
from harness import processes
from harness.atomically import write_text
from harness.captures import run_folder, status, wait_for, wait_until
from harness.client import generate, generate_concurrently, get
from harness.launching import Zygote
from harness.prompts import prompt
from harness.server import Serve, Server, ServerConfig
from hs_capture.format.index import IndexEntry, read_index
from hs_capture.soundness import examine, newest_files

LENGTH = 150
"""Tokens of a prompt: 300 KB of states."""


HELD_UP = 5
"""Seconds that a pass may be held up, which SGLang's watchdog bears."""


def _config(model: Path, dump_dir: Path, **settings: str) -> ServerConfig:
    return ServerConfig(
        model,
        {
            "SGLANG_HS_DUMP_DIR": str(dump_dir),
            "SGLANG_HS_BUFFER": "2M",
            "SGLANG_HS_BLOCK_TIMEOUT": str(HELD_UP),
            **settings,
        },
        chunk=64,
        arguments=("--watchdog-timeout", str(3 * HELD_UP)),
    )


def _prompts(first: int, count: int) -> list[tuple[str, list[int]]]:
    return [(f"r{number}", prompt(number, LENGTH)) for number in range(first, first + count)]


def _writer(server: Server) -> int:
    """The process id of the one writer; what starts one leads the session it is in."""

    def look() -> list[int]:
        found = processes.of_server(server.pid, server.mark)
        return [p.pid for p in found if p.session not in (server.pid, p.pid)]

    (pid,) = wait_until(look, lambda seen: len(seen) == 1)
    return pid


def _lines(dump_dir: Path) -> list[IndexEntry]:
    (index,) = run_folder(dump_dir).glob("index-*.jsonl")
    return read_index(index)


def _assert_all_told(dump_dir: Path, sent: int) -> Counter[str | None]:
    """Every request has one line, every file is sound; return the lines by their reason."""
    lines = wait_until(lambda: _lines(dump_dir), lambda seen: len(seen) >= sent)
    assert sorted(line.rid for line in lines) == sorted(f"r{number}" for number in range(sent))
    examined = [examine(path) for path in newest_files(run_folder(dump_dir), None)]
    assert [one.problem for one in examined if one is not None and one.problem] == []
    return Counter(line.incomplete_reason for line in lines)


@contextmanager
def _healthy(server: Server) -> Iterator[None]:
    """``/health`` is asked for again and again meanwhile, and never fails."""
    over = threading.Event()
    failures: list[Exception] = []
    answers = 0

    def ask() -> None:
        nonlocal answers
        try:
            while not over.wait(0.1):
                get(f"{server.url}/health", timeout=30)
                answers += 1
        except Exception as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()
    assert failures == []
    assert answers > 0


def test_a_writer_that_stands_still_costs_time_then_rows_and_never_health(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> None:
    """The server is held up, then drops; when the writer goes on, so does the capture.

    SGLang's watchdog, which ends a server whose passes stand still, does not fire.
    """
    dump_dir = tmp_path / "dump"
    with serve(zygote, _config(model, dump_dir)) as server:
        generate_concurrently(server.url, _prompts(0, 2), at_once=1)
        wait_for(dump_dir, ["r0", "r1"])
        writer = _writer(server)
        os.kill(writer, signal.SIGSTOP)
        with _healthy(server):
            began = time.monotonic()
            answers = generate_concurrently(server.url, _prompts(2, 18), at_once=4)
            assert time.monotonic() - began >= HELD_UP
        assert len(answers) == 18
        os.kill(writer, signal.SIGCONT)
        wait_until(lambda: len(_lines(dump_dir)), lambda seen: seen >= 14)
        generate_concurrently(server.url, _prompts(20, 4), at_once=2)
        wait_for(dump_dir, [f"r{number}" for number in range(20, 24)])
    reasons = _assert_all_told(dump_dir, 24)
    assert set(reasons) == {None, "dropped"}
    complete = {line.rid for line in _lines(dump_dir) if line.complete}
    assert complete >= {f"r{number}" for number in (0, 1, 20, 21, 22, 23)}
    counters = status(dump_dir)["counters"]
    assert counters["rows_dropped"] > 0
    assert counters["blocked_microseconds"] >= 4_000_000
    assert counters["hook_errors"] == counters["writer_errors"] == 0


def test_health_is_answered_while_pass_after_pass_is_held_up(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> None:
    """A disk that takes a request in some seconds, and a server with the time-out's default."""
    dump_dir = tmp_path / "dump"
    speed = write_text(tmp_path / "speed", "5e4")
    config = _config(
        model,
        dump_dir,
        PYTHONPATH=str(WRITER_HOST),
        HS_TEST_DISK=str(speed),
        SGLANG_HS_WORKERS="1",
        SGLANG_HS_BLOCK_TIMEOUT="",
    )
    with serve(zygote, config) as server:
        with _healthy(server):
            answers = generate_concurrently(server.url, _prompts(0, 24), at_once=3)
        assert len(answers) == 24
        assert status(dump_dir)["counters"]["blocked_microseconds"] >= 10_000_000
        write_text(speed, "1e12")
    _assert_all_told(dump_dir, 24)


def test_a_killed_writer_is_replaced_under_load_and_while_idle(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> None:
    """Requests are answered, each of them is told once, and nothing hangs."""
    dump_dir = tmp_path / "dump"
    with serve(zygote, _config(model, dump_dir)) as server:

        def kill_now_and_then(answered: int) -> None:
            if answered in (5, 15, 25):
                os.kill(_writer(server), signal.SIGKILL)

        with _healthy(server):
            answers = generate_concurrently(
                server.url, _prompts(0, 30), at_once=4, answered=kill_now_and_then
            )
        assert len(answers) == 30
        wait_until(lambda: len(_lines(dump_dir)), lambda seen: seen >= 30)
        idle = _writer(server)
        os.kill(idle, signal.SIGKILL)
        seen = wait_until(lambda: status(dump_dir), lambda seen: seen["writer_pid"] != idle)
        assert seen["writer_pid"] not in (idle, None)
        assert seen["state"] == "serving"
        generate(server.url, prompt(30, LENGTH), "r30")
        wait_for(dump_dir, ["r30"])
    reasons = _assert_all_told(dump_dir, 31)
    assert set(reasons) <= {None, "writer_died"}
    assert status(dump_dir)["counters"]["writer_restarts"] == 4
    assert status(dump_dir)["state"] == "ended"
    assert list(dump_dir.rglob("*.part")) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    options = "size=2m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hs-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_file_system_that_is_full_in_the_middle_of_a_file_stops_nothing(
    serve: Serve, zygote: Zygote, model: Path, small: Path
) -> None:
    """No part of a file gets a final name; when there is room again, capture goes on by itself."""
    config = _config(model, small, SGLANG_HS_RESERVE="0", SGLANG_HS_BLOCK_TIMEOUT="1")
    with serve(zygote, config) as server:
        with _healthy(server):
            answers = generate_concurrently(server.url, _prompts(0, 24), at_once=4)
        assert len(answers) == 24
        examined = [examine(path) for path in newest_files(run_folder(small), None)]
        assert examined
        assert [one.problem for one in examined if one is not None and one.problem] == []
        # A consumer takes the files away.
        for path in small.rglob("*.hsc"):
            path.unlink()
        wait_until(lambda: len(_lines(small)), lambda seen: seen >= 20)
        for path in small.rglob("*.hsc"):
            path.unlink()
        generate(server.url, prompt(24, LENGTH), "r24")
        assert wait_for(small, ["r24"])["r24"].complete
    reasons = _assert_all_told(small, 25)
    assert reasons[None] >= 1
    assert set(reasons) <= {None, "dropped", "file_system_full"}
    assert reasons[None] < 25
    assert list(small.rglob("*.part")) == []
