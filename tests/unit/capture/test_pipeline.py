"""From the tensors of forward passes to captures that a reader opens, through a real writer."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from capture_server import (
    HIDDEN,
    LONGEST,
    RING,
    ROW_BYTES,
    CaptureServer,
    assert_complete,
    assert_incomplete,
    prompt,
    wait_until,
)
from hs_capture import ConfigError
from hs_capture.capture import tap as tap_module
from hs_capture.capture.batch import batch_of
from hs_capture.capture.copier import HostCopier
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.sender import Overload
from hs_capture.capture.tap import Tap
from hs_capture.ring.producer import Producer


def test_a_request_in_one_pass_is_one_complete_capture(tmp_path: Path) -> None:
    request = prompt(0, 20)
    with CaptureServer(tmp_path) as server:
        server.prefill((request, 0, 20))
    (capture,) = server.store()
    assert_complete(capture, request)
    (line,) = server.index()
    assert (line.sequence, line.rows, line.raw_bytes) == (0, 20, 20 * ROW_BYTES)
    assert line.file is not None
    assert (server.run_dir / line.file).stat().st_size == line.stored_bytes
    assert not (server.run_dir / "open").exists()


def test_chunks_over_several_passes_and_other_requests_between_them(tmp_path: Path) -> None:
    a, b, c = prompt(0, 50), prompt(1, 33), prompt(2, 1)
    with CaptureServer(tmp_path) as server:
        server.prefill((a, 0, 16), (b, 0, 10))
        server.prefill((c, 0, 1), (a, 16, 30))
        server.prefill((b, 10, 23))
        server.prefill((a, 46, 4))
    store = server.store()
    assert sorted(store.rids()) == ["r0", "r1", "r2"]
    for request in (a, b, c):
        assert_complete(store[request.rid], request)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_planes_that_arrive_after_their_entry(tmp_path: Path, dtype: str) -> None:
    """As from a GPU: the writer waits for the rows, not the server, and nothing is lost."""
    a, b = prompt(0, 700), prompt(1, 33)
    with CaptureServer(tmp_path, dtype=dtype, late_planes=True) as server:
        server.prefill((a, 0, 300), (b, 0, 10))
        server.prefill((b, 10, 23), (a, 300, 400))
        server.wait_drained()
    store = server.store()
    for request in (a, b):
        assert_complete(store[request.rid], request)


def test_a_capture_can_be_read_while_the_server_goes_on(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        request, other = prompt(0, 5), prompt(1, 8)
        server.prefill((request, 0, 5), (other, 0, 4))
        server.wait_drained()
        (capture,) = server.store()
        assert_complete(capture, request)
        wait_until(lambda: server.status().counters["open_records"] == 1, "an open record")
        assert server.status().state == "serving"
        server.prefill((other, 4, 4))
    assert_complete(server.store()["r1"], other)


def test_a_batch_larger_than_an_entry_is_split(tmp_path: Path) -> None:
    """Two thousand rows go through a ring that holds some two hundred."""
    requests = [prompt(0, 700), prompt(1, 1), prompt(2, 1200), prompt(3, 99)]
    with CaptureServer(tmp_path) as server:
        server.prefill(*((request, 0, request.num_tokens) for request in requests))
        assert server.counter("rows_dropped") == 0
    store = server.store()
    assert len(store) == 4
    for request in requests:
        assert_complete(store[request.rid], request)


def test_padding_and_generated_tokens_are_ignored(tmp_path: Path) -> None:
    """Padded rows are NaN here and generated ones infinite: neither may turn up."""
    a, b = prompt(0, 9), prompt(1, 4)
    with CaptureServer(tmp_path) as server:
        server.prefill((a, 0, 15), (b, 0, 4), padding=13)
        server.prefill((a, 15, 1), (b, 4, 1), padding=6)
    store = server.store()
    assert len(store) == 2
    assert_complete(store["r0"], a)
    assert_complete(store["r1"], b)


def test_a_retracted_request_is_captured_once(tmp_path: Path) -> None:
    """In the middle of its prefill, and after it."""
    a, b = prompt(0, 30), prompt(1, 12)
    with CaptureServer(tmp_path) as server:
        server.prefill((a, 0, 20), (b, 0, 12))
        server.prefill((a, 0, 24), (b, 0, 17))
        server.prefill((a, 24, 6))
    store = server.store()
    assert len(store) == 2
    assert_complete(store["r0"], a)
    assert_complete(store["r1"], b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_stored_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    request = prompt(0, 40)
    with CaptureServer(tmp_path, dtype=dtype) as server:
        server.prefill((request, 0, 25))
        server.prefill((request, 25, 15))
    assert_complete(server.store()["r0"], request)


def test_rows_from_the_prefix_cache_are_missing_and_say_so(tmp_path: Path) -> None:
    hit, chunked = prompt(0, 30, cached=12), prompt(1, 40, cached=8)
    with CaptureServer(tmp_path) as server:
        server.prefill((hit, 12, 18))
        server.prefill((chunked, 8, 16))
        server.prefill((chunked, 24, 16))
    store = server.store()
    assert_incomplete(store["r0"], hit, "prefix_cache", [(0, 12)])
    assert_incomplete(store["r1"], chunked, "prefix_cache", [(0, 8)])


def test_a_request_that_leaves_early_is_aborted(tmp_path: Path) -> None:
    gone, whole = prompt(0, 50), prompt(1, 5)
    with CaptureServer(tmp_path) as server:
        server.prefill((gone, 0, 16), (whole, 0, 5))
        server.prefill((gone, 16, 16))
        server.tap.forget([gone.key, whole.key, 77])
        server.wait_drained()
        assert_incomplete(server.store()["r0"], gone, "aborted", [(32, 50)])
    assert len(server.store()) == 2
    assert_complete(server.store()["r1"], whole)


def test_what_is_open_when_the_server_ends_is_closed_by_the_writer(tmp_path: Path) -> None:
    """The queue is finished first: the ring is full of rows when the pipe is closed."""
    done = [prompt(key, 40) for key in range(4)]
    half = prompt(9, 100)
    with CaptureServer(tmp_path) as server:
        pid = server.stop_writer()
        server.prefill((half, 0, 20))
        for request in done:
            server.prefill((request, 0, 40))
        server.launcher.hang_up()
        os.kill(pid, signal.SIGCONT)
    store = server.store()
    assert len(store) == 5
    for request in done:
        assert_complete(store[request.rid], request)
    assert_incomplete(store["r9"], half, "server_stopped", [(20, 100)])
    status = server.status()
    assert (status.state, status.writer_pid, status.server_pid) == ("ended", pid, os.getpid())
    assert status.counters["open_records"] == 0
    assert status.counters["complete"] == 4
    assert status.counters["incomplete"] == 1
    assert status.counters["tokens"] == 180
    assert list(server.run_dir.rglob("*.part")) == []


def test_wrong_tensors_are_refused_and_their_batch_can_be_given_up(tmp_path: Path) -> None:
    request = prompt(0, 10)
    batch = batch_of([(request, 0, 10)])
    with CaptureServer(tmp_path) as server:
        good = server.states((request, 0, 10))
        wrong = {
            "layer.3: got 9 x 256": [good[0], good[1][:9], *good[2:]],
            "layer.1: got 10 x 255": [good[0][:, 1:], *good[1:]],
            "layer.4: .* torch.float64, expected .* torch.float32": [
                *good[:2],
                good[2].double(),
                good[3],
            ],
            "not enough values": [good[0].flatten(), *good[1:]],
            "shorter": good[:3],
        }
        for reason, tensors in wrong.items():
            with pytest.raises(ValueError, match=reason):
                server.tap.capture(batch, tensors)
        assert server.drained
        server.tap.lose(batch, "hook_error")
        server.prefill((request, 0, 10))
    (capture,) = server.store()
    assert_incomplete(capture, request, "hook_error", [(0, 10)])


def test_a_lost_chunk_leaves_the_others(tmp_path: Path) -> None:
    request = prompt(0, 40)
    with CaptureServer(tmp_path) as server:
        server.prefill((request, 0, 16))
        server.tap.lose(batch_of([(request, 16, 16)]), "hook_error")
        server.prefill((request, 32, 8))
    assert_incomplete(server.store()["r0"], request, "hook_error", [(16, 32)])


def test_many_long_prompts_can_be_given_up_at_once(tmp_path: Path) -> None:
    """Their token ids together are more than one entry of the ring takes."""
    requests = [prompt(key, LONGEST) for key in range(80)]
    with CaptureServer(tmp_path) as server:
        server.tap.lose(batch_of([(request, 0, LONGEST) for request in requests]), "hook_error")
        server.wait_drained()
    store = server.store()
    assert len(store) == 80
    for request in requests:
        assert_incomplete(store[request.rid], request, "hook_error", [(0, LONGEST)])


def test_a_rid_used_twice_is_two_captures(tmp_path: Path) -> None:
    first, second = prompt(0, 6, rid="same"), prompt(1, 7, rid="same")
    with CaptureServer(tmp_path) as server:
        server.prefill((first, 0, 6), (second, 0, 3))
        server.wait_drained()
        server.prefill((second, 3, 4))
    one, two = server.store().captures("same")
    assert_complete(one, first)
    assert_complete(two, second)


def test_an_error_of_the_server_is_seen_in_the_status(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        server.tap.report("reading a batch: KeyError: 'reqs'")
        server.producer.count("hook_errors")
    assert server.status().last_error == "reading a batch: KeyError: 'reqs'"
    assert server.status().counters["hook_errors"] == 1


def test_a_ring_too_small_says_how_large_it_must_be(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        small = Producer(256 * 1024)
        launcher = WriterLauncher(small, server.config, {})
        overload = Overload(block=True, timeout=1)
        said = r"SGLANG_HS_BUFFER=262144 bytes are too few .* of 4096 .* 2000 tokens; give at least"
        with pytest.raises(ConfigError, match=said) as refusal:
            Tap(small, launcher, server.streams, HostCopier(small), overload, LONGEST)
        enough = int(str(refusal.value).split()[-1])
        large = Producer(enough)
        Tap(large, launcher, server.streams, HostCopier(large), overload, LONGEST)
        os.close(small.descriptor)
        os.close(large.descriptor)
    assert enough < RING
    assert enough // 4 == 16 * 4 * HIDDEN * torch.float32.itemsize + 8 * LONGEST + 64 * 1024


class Noted(HostCopier):
    """Notes in which order it is asked for what."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self.asked: list[str] = []

    def copy(self, *args: Any, **kwargs: Any) -> None:
        self.asked.append("copy")
        super().copy(*args, **kwargs)

    def protect(self) -> None:
        self.asked.append("protect")


def test_a_pass_is_copied_when_the_one_before_was_read(tmp_path: Path) -> None:
    """Else the tensors of many passes could wait to be freed while a device's copies are slow."""
    a, b = prompt(0, LONGEST), prompt(1, 5)
    with CaptureServer(tmp_path) as server:
        noted = Noted(server.producer)
        # So small that a pass takes several entries.
        noted.largest_payload = tap_module.MESSAGE_ROOM + 120 * ROW_BYTES + 8 * LONGEST
        tap = Tap(
            server.producer, server.launcher, server.streams, noted, Overload(True, 30.0), LONGEST
        )
        for extents in (((a, 0, 400), (b, 0, 5)), ((a, 400, LONGEST - 400),)):
            tap.capture(batch_of(extents), server.states(*extents))
    passes = [asked.split() for asked in " ".join(noted.asked).split("protect")]
    assert [set(copies) for copies in passes] == [set(), {"copy"}, {"copy"}]
    assert len(passes[1]) > 1
    assert_complete(server.store()["r0"], a)
    assert_complete(server.store()["r1"], b)
