"""The writer dies: the server goes on, another writer takes over, every loss is told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from capture_server import (
    WRITER_HOST,
    CaptureServer,
    assert_complete,
    assert_incomplete,
    kill,
    prompt,
    wait_until,
)
from harness.atomically import write_text


def test_an_open_request_goes_on_in_the_next_writer(tmp_path: Path) -> None:
    """Its first chunk died with the writer; the next ones are captured."""
    before, open_, after = prompt(0, 10), prompt(1, 160), prompt(2, 10)
    with CaptureServer(tmp_path) as server:
        server.prefill((before, 0, 10), (open_, 0, 120))
        server.wait_drained()
        part = server.run_dir / "open" / "tp0-1.part"
        assert part.exists()
        server.kill_writer()
        server.prefill((open_, 120, 20), (after, 0, 10))
        assert server.counter("writer_restarts") == 1
        server.prefill((open_, 140, 20))
    store = server.store()
    assert len(store) == 3
    assert_complete(store["r0"], before)
    assert_incomplete(store["r1"], open_, "writer_died", [(0, 120)])
    assert_complete(store["r2"], after)
    assert list(server.run_dir.rglob("*.part")) == []
    assert server.status().counters["writer_restarts"] == 1
    assert sorted(line.sequence for line in server.index()) == [0, 1, 2]


def test_its_last_chunk_alone_is_enough_to_tell(tmp_path: Path) -> None:
    request = prompt(1, 30)
    with CaptureServer(tmp_path) as server:
        server.prefill((request, 0, 20))
        server.wait_drained()
        server.kill_writer()
        server.prefill((request, 20, 10))
        server.wait_drained()
        wait_until(lambda: len(server.store()) == 1, "the capture")
        assert_incomplete(server.store()["r1"], request, "writer_died", [(0, 20)])


def test_an_open_request_that_sends_no_more_is_told_at_the_servers_end(tmp_path: Path) -> None:
    open_, other = prompt(1, 30), prompt(2, 4)
    with CaptureServer(tmp_path) as server:
        server.prefill((open_, 0, 20))
        server.wait_drained()
        server.kill_writer()
        server.prefill((other, 0, 4))
    store = server.store()
    assert_incomplete(store["r1"], open_, "writer_died", [(0, 30)])
    assert_complete(store["r2"], other)


def test_what_is_whole_in_the_ring_is_not_lost(tmp_path: Path) -> None:
    """The dead writer had not taken it."""
    waiting, next_ = prompt(0, 30), prompt(1, 8)
    with CaptureServer(tmp_path) as server:
        server.stop_writer()
        server.prefill((waiting, 0, 20), (next_, 0, 4))
        server.prefill((waiting, 20, 10))
        server.kill_writer()
        server.prefill((next_, 4, 4))
    store = server.store()
    assert len(store) == 2
    assert_complete(store["r0"], waiting)
    assert_complete(store["r1"], next_)


def test_a_request_whose_end_alone_is_in_the_ring_is_told(tmp_path: Path) -> None:
    """Nobody has its token ids any more, so there is no file; the index says what happened."""
    request, next_ = prompt(0, 30), prompt(1, 8)
    with CaptureServer(tmp_path) as server:
        server.prefill((request, 0, 20))
        server.wait_drained()
        server.stop_writer()
        server.prefill((request, 20, 10))
        server.kill_writer()
        server.prefill((next_, 0, 8))
    assert_complete(server.store()["r1"], next_)
    assert server.store().rids() == ["r1"]
    (line,) = [line for line in server.index() if line.rid == "r0"]
    assert (line.file, line.incomplete_reason, line.missing) == (None, "writer_died", ((0, 30),))
    assert server.status().counters["lost"] == 1


def test_an_aborted_request_is_closed_in_the_next_writer_too(tmp_path: Path) -> None:
    request = prompt(0, 30)
    with CaptureServer(tmp_path) as server:
        server.prefill((request, 0, 20))
        server.wait_drained()
        server.kill_writer()
        server.tap.forget([request.key])
        server.wait_drained()
        wait_until(lambda: len(server.store()) == 1, "the capture")
        assert_incomplete(server.store()["r0"], request, "writer_died", [(0, 30)])


def test_writers_may_die_again_and_again(tmp_path: Path) -> None:
    """At any moment, while passes go on: every request is told, and what is told is true."""
    requests = [prompt(key, 35) for key in range(12)]
    with CaptureServer(tmp_path) as server:
        for request in requests:
            server.prefill((request, 0, 20))
            if request.key % 3 == 1:
                time.sleep(0.01 * request.key)
                for pid in server.writers():
                    kill(pid)
            server.prefill((request, 20, 15))
        server.kill_writer()
        server.prefill((prompt(12, 35), 0, 35))
        assert server.counter("writer_restarts") >= 1
    requests.append(prompt(12, 35))
    assert {line.rid for line in server.index()} == {request.rid for request in requests}
    for capture in server.store():
        request = requests[int(capture.rid[1:])]
        if capture.complete:
            assert_complete(capture, request)
        else:
            assert_incomplete(capture, request, "writer_died", capture.missing)
    assert_complete(server.store()["r12"], requests[12])
    assert list(server.run_dir.rglob("*.part")) == []


def test_a_dead_writer_is_replaced_while_the_server_waits_for_room(tmp_path: Path) -> None:
    requests = [prompt(key, 40) for key in range(12)]
    with CaptureServer(tmp_path, block=True) as server:
        pid = server.stop_writer()
        for request in requests[:4]:
            server.prefill((request, 0, 40))
        kill(pid)
        for request in requests[4:]:
            server.prefill((request, 0, 40))
        assert server.counter("writer_restarts") == 1
        assert server.counter("rows_dropped") == 0
    for request in requests:
        assert_complete(server.store()[request.rid], request)


@pytest.mark.parametrize("taken", [0, 2, 4, 5])
def test_an_error_in_its_main_thread_costs_what_it_had_taken_of_open_requests(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], taken: int
) -> None:
    """Its threads store what they have; then another writer takes the rest, as after a kill."""
    plant = tmp_path / "take"
    environ = {"PYTHONPATH": str(WRITER_HOST), "HS_TEST_TAKE": str(plant)}
    first, open_, ended, last = (prompt(key, 30) for key in range(4))
    with CaptureServer(tmp_path / "dump", environ=environ) as server:
        # All is in the ring before the writer sees any of it.
        pid = server.stop_writer()
        server.prefill((first, 0, 30))
        server.prefill((open_, 0, 10))
        server.prefill((ended, 0, 10))
        server.prefill((open_, 10, 10))
        server.prefill((ended, 10, 20))
        server.prefill((last, 0, 30))
        write_text(plant, str(taken))
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: server.counter("writer_restarts") == 1, "another writer")
        assert server.writer_pid() != pid
        server.wait_drained()
        server.prefill((open_, 20, 10))
        server.wait_drained()
        assert not plant.exists()
    assert server.counter("writer_restarts") == 1
    assert "RuntimeError: planted in the writer's main thread" in capfd.readouterr().err
    lines = {line.rid: line for line in server.index()}
    assert len(server.index()) == len(lines) == 4
    store = server.store()
    assert_complete(store["r0"], first)
    assert_complete(store["r3"], last)
    if taken < 2:
        assert_complete(store["r1"], open_)
    else:
        # It was opened in what the dead writer had taken, so that the next one cannot tell whose
        # its rows in the ring are, until the server says so again.
        assert_incomplete(store["r1"], open_, "writer_died", [(0, 20)])
    if taken == 4:
        told = lines["r2"]
        assert told.file is None
        assert (told.incomplete_reason, told.missing) == ("writer_died", ((0, 30),))
    else:
        assert_complete(store["r2"], ended)
    assert list(server.run_dir.rglob("*.part")) == []
