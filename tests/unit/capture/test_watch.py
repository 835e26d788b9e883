"""A writer that dies is replaced at once, without a batch that would notice."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

import pytest

from capture_server import CaptureServer, assert_complete, kill, prompt, wait_until
from hs_capture.capture import launcher


def test_what_an_idle_server_has_in_its_ring_is_taken_over(tmp_path: Path) -> None:
    requests = [prompt(key, 20) for key in range(5)]
    with CaptureServer(tmp_path) as server:
        server.stop_writer()
        for request in requests:
            server.prefill((request, 0, 20))
        server.kill_writer()
        wait_until(lambda: len(server.index()) == 5, "the captures of an idle server")
        assert server.counter("writer_restarts") == 1
    for request in requests:
        assert_complete(server.store()[request.rid], request)


def test_many_deaths_in_a_row_cost_an_idle_server_nothing(tmp_path: Path) -> None:
    request = prompt(0, 20)
    with CaptureServer(tmp_path) as server:
        server.stop_writer()
        server.prefill((request, 0, 20))
        for _ in range(4):
            server.kill_writer()
            server.stop_writer()
        os.kill(server.writer_pid(), signal.SIGCONT)
        wait_until(lambda: len(server.store()) == 1, "the capture")
        assert server.counter("writer_restarts") == 4
    assert_complete(server.store()["r0"], request)


def test_a_writer_that_dies_as_the_server_ends_has_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are news to the thread that minds it; what is in the ring is stored all the same."""
    request = prompt(0, 20)
    with CaptureServer(tmp_path) as server:
        sleep, ends = server.launcher._sleep, select.poll()
        ends.register(server.launcher._end, select.POLLIN)

        def sleep_until_the_end() -> dict[int, int]:
            ends.poll()
            return sleep()

        monkeypatch.setattr(server.launcher, "_sleep", sleep_until_the_end)
        server.kill_writer()
        pid = server.stop_writer()
        server.prefill((request, 0, 20))
        kill(pid)
    assert_complete(server.store()["r0"], request)


def test_a_writer_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is counted; the server is not held up, and what it sends waits in the ring."""
    monkeypatch.setattr(launcher, "FREE_RESTARTS", 0)
    monkeypatch.setattr(launcher, "PAUSE_SECONDS", 0.05)
    request = prompt(0, 20)
    with CaptureServer(tmp_path) as server:
        python = sys.executable
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        kill(server.writer_pid())
        wait_until(lambda: server.counter("hook_errors") >= 3, "failures")
        server.prefill((request, 0, 20))
        assert server.counter("blocked_microseconds") == 0
        monkeypatch.setattr(sys, "executable", python)
        wait_until(lambda: len(server.store()) == 1, "the capture")
        assert server.counter("writer_restarts") == server.counter("hook_errors") + 1
    assert_complete(server.store()["r0"], request)
    # The logged traceback holds on to the ring.
    caplog.clear()


def test_the_server_may_end_while_no_writer_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even in the middle of a long pause the thread that minds the writer tries once and ends."""
    monkeypatch.setattr(launcher, "FREE_RESTARTS", 0)
    monkeypatch.setattr(launcher, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(launcher, "MAX_PAUSE_SECONDS", 3600.0)
    with CaptureServer(tmp_path) as server:
        kill(server.writer_pid())
        wait_until(lambda: server.launcher._bell < 0, "the end of the writer")
        assert server.counter("writer_restarts") == 0
    assert server.counter("writer_restarts") == 1


def test_the_server_may_end_with_its_writer(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        kill(server.writer_pid())
