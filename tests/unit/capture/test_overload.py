"""A ring that is full because the writer cannot keep up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from capture_server import CaptureServer, assert_complete, assert_incomplete, prompt, wait_until
from hs_capture.capture import sender as sender_module
from hs_capture.capture import tally as tally_module
from hs_capture.capture.batch import Request, batch_of
from hs_capture.capture.copier import HostCopier
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.sender import Overload
from hs_capture.capture.tap import Tap
from hs_capture.ring.consumer import Consumer, Entry
from hs_capture.ring.message import StreamSpec
from hs_capture.ring.producer import Producer
from hs_capture.writer.config import WriterConfig

MANY = 12
"""Requests of 40 rows; about six of them fill the ring."""


def _fill(server: CaptureServer) -> None:
    """Send more than the ring holds."""
    for key in range(MANY):
        server.prefill((prompt(key, 40), 0, 40))


def _assert_all_told(server: CaptureServer) -> int:
    """Every request has a capture; return how many of them lack their dropped rows."""
    store = server.store()
    assert sorted(store.rids()) == sorted(f"r{key}" for key in range(MANY))
    dropped = 0
    for key in range(MANY):
        capture, request = store[f"r{key}"], prompt(key, 40)
        if capture.complete:
            assert_complete(capture, request)
        else:
            assert_incomplete(capture, request, "dropped", [(0, 40)])
            dropped += 1
    assert [line.incomplete_reason for line in server.index()].count("dropped") == dropped
    assert server.counter("rows_dropped") == 40 * dropped
    assert server.status().counters["rows_dropped"] == 40 * dropped
    return dropped


def test_the_server_is_held_up_until_there_is_room(tmp_path: Path) -> None:
    with CaptureServer(tmp_path, block=True) as server:
        pid = server.stop_writer()

        def let_go() -> None:
            wait_until(lambda: server.counter("blocked_microseconds") > 20_000, "a full ring")
            os.kill(pid, signal.SIGCONT)

        later = threading.Thread(target=let_go)
        later.start()
        _fill(server)
        later.join()
    assert _assert_all_told(server) == 0


def test_after_the_timeout_rows_are_dropped_without_further_waiting(tmp_path: Path) -> None:
    """The wait is paid once, not by every pass, and word of each dropped request goes out."""
    with CaptureServer(tmp_path, block=True, timeout=2.0) as server:
        pid = server.stop_writer()
        started = time.monotonic()
        _fill(server)
        waited = 1e6 * (time.monotonic() - started)
        blocked = server.counter("blocked_microseconds")
        assert 2_000_000 <= blocked <= waited
        os.kill(pid, signal.SIGCONT)
    dropped = _assert_all_told(server)
    assert dropped >= 4
    assert blocked < dropped * 2_000_000


def test_once_the_ring_is_half_empty_rows_are_taken_again(tmp_path: Path) -> None:
    with CaptureServer(tmp_path, block=True, timeout=0.05) as server:
        pid = server.stop_writer()
        _fill(server)
        os.kill(pid, signal.SIGCONT)
        server.wait_drained()
        before = server.counter("dropping_microseconds")
        request = prompt(90, 30)
        server.prefill((request, 0, 30))
        until_taken = server.counter("dropping_microseconds")
        assert until_taken > before > 0
        server.prefill((prompt(91, 30), 0, 30))
        assert server.counter("dropping_microseconds") == until_taken
    assert_complete(server.store()["r90"], request)


def test_the_server_never_waits_where_rows_may_be_dropped(tmp_path: Path) -> None:
    with CaptureServer(tmp_path, block=False, timeout=30) as server:
        pid = server.stop_writer()
        _fill(server)
        assert server.counter("blocked_microseconds") == 0
        os.kill(pid, signal.SIGCONT)
    assert _assert_all_told(server) >= 4


def test_a_request_loses_only_the_chunks_that_found_no_room(tmp_path: Path) -> None:
    request = prompt(50, 80)
    with CaptureServer(tmp_path, block=False) as server:
        server.prefill((request, 0, 20))
        server.wait_drained()
        pid = server.stop_writer()
        _fill(server)
        server.prefill((request, 20, 40))
        os.kill(pid, signal.SIGCONT)
        server.wait_drained()
        server.prefill((request, 60, 20))
    assert_incomplete(server.store()["r50"], request, "dropped", [(20, 60)])


def test_word_that_finds_no_room_at_all_goes_out_later(tmp_path: Path) -> None:
    """So many requests are dropped that not even the share kept for word of them holds it."""
    long = [prompt(100 + i, 1800) for i in range(40)]
    with CaptureServer(tmp_path, block=False) as server:
        pid = server.stop_writer()
        _fill(server)
        for request in long:
            server.prefill((request, 0, 40))
        server.tap.forget([request.key for request in long])
        os.kill(pid, signal.SIGCONT)
        # Rows come behind all that is owed, and this is room for both.
        wait_until(lambda: server.producer.free > 500_000, "room in the ring")
        last = prompt(99, 3)
        server.prefill((last, 0, 3))
        server.wait_drained()
        server.tap.forget([])
    store = server.store()
    assert len(store) == MANY + len(long) + 1
    for request in long:
        assert_incomplete(store[request.rid], request, "dropped", [(0, 1800)])
    assert_complete(store["r99"], last)


def test_a_writer_that_dies_while_the_ring_is_full_is_replaced(tmp_path: Path) -> None:
    """A full file system stops the writer from taking anything; even word of losses waits."""
    with CaptureServer(tmp_path, block=False, reserve=1 << 60) as server:
        _fill(server)
        for key in range(100, 140):
            server.prefill((prompt(key, 1800), 0, 40))
        before = server.producer.free
        server.kill_writer()
        server.prefill((prompt(90, 40), 0, 40))
        assert server.counter("writer_restarts") == 1
        assert server.producer.free == before
        server.kill_writer()


class SlowWriter:
    """Stands in for the module `time`, and for a writer that gives an entry back now and then."""

    def __init__(self, ring: Consumer, seconds: float) -> None:
        self.now = 0
        self._ring, self._seconds = ring, seconds
        self._next = seconds
        self._held: deque[Entry] = deque()

    def perf_counter_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(1e9 * seconds)
        self._held.extend(self._ring.entries())
        if self.now >= 1e9 * self._next and self._held:
            self._next += self._seconds
            self._ring.release(self._held.popleft())


def test_a_pass_of_many_entries_waits_no_longer_than_one_of_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each entry finds room 0.4 s later: the third has waited 0.2 s when the second is over.

    The log has one line of the waiting and one of the dropping, not one a wait.
    """
    streams = (StreamSpec("layer.1", "float32", 64),)
    producer = Producer(1 << 20)
    config = WriterConfig(-1, -1, "", "", 0, 0, 1, 0, streams, False, {})
    launcher = WriterLauncher(producer, config, {})
    copier, overload = HostCopier(producer), Overload(True, 1.0)
    tap = Tap(producer, launcher, streams, copier, overload, longest_prompt=8000)
    writer = SlowWriter(Consumer(producer.descriptor), 0.4)
    for module in (sender_module, tally_module):
        monkeypatch.setattr(module, "time", writer)

    def one_pass(key: int, rows: int) -> None:
        request = Request(key, f"r{key}", np.zeros(rows, np.int64), 0)
        tap.capture(batch_of([(request, 0, rows)]), [torch.zeros(rows, 64)])

    # As many as the ring takes at once.
    for key in range(4):
        one_pass(key, 700)
    assert producer.region.counters()["blocked_microseconds"] == 0
    one_pass(9, 6 * 700)
    counters = producer.region.counters()
    assert counters["blocked_microseconds"] == 1_000_000
    assert 2 * 700 < counters["rows_dropped"] < 5 * 700
    assert counters["rows_taken"] + counters["rows_dropped"] == 10 * 700
    waits, drops = caplog.messages
    assert waits.startswith("hs-capture: the ring is full and the server waits: the writer does")
    assert drops.startswith("hs-capture: the ring is full and rows are dropped, whose captures ")
    caplog.clear()
    writer.now += 60 * 10**9
    one_pass(10, 700)
    (said,) = caplog.messages
    assert said == drops
    caplog.clear()
    os.close(producer.descriptor)
