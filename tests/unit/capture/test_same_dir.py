"""Several servers, one after the other or at once, share a dump directory; clocks may jump."""

from __future__ import annotations

from pathlib import Path

from capture_server import (
    WRITER_HOST,
    CaptureServer,
    assert_complete,
    assert_incomplete,
    prompt,
    wait_until,
)
from harness.atomically import write_text
from hs_capture import open_store
from hs_capture.writer.leftovers import remove_leftovers


def test_two_servers_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Neither when one starts, which looks for what dead ones left, nor when one loses its
    writer."""
    shared, own = prompt(0, 160, rid="shared"), prompt(1, 20)
    with CaptureServer(tmp_path, run_id="run-1") as one:
        one.prefill((shared, 0, 120))
        part = one.run_dir / "open" / "tp0-0.part"
        wait_until(part.exists, "an unfinished file")
        remove_leftovers(tmp_path)
        with CaptureServer(tmp_path, run_id="run-2") as two:
            two.prefill((shared, 0, 160))
            two.wait_drained()
            two.kill_writer()
            two.prefill((own, 0, 20))
            one.prefill((shared, 120, 40))
    store = open_store(tmp_path)
    assert [info.run_id for info in store.runs] == ["run-1", "run-2"]
    assert len(store) == 3
    for capture in store.captures("shared"):
        assert_complete(capture, shared)
    assert_complete(store["r1"], own)
    assert list(tmp_path.rglob("*.part")) == []


def test_a_server_that_is_started_again_adds_to_the_directory(tmp_path: Path) -> None:
    requests = [prompt(key, 10 + key, rid="again") for key in range(3)]
    for number, request in enumerate(requests):
        with CaptureServer(tmp_path, run_id=f"run-{number}") as server:
            server.prefill((request, 0, request.num_tokens))
    captures = open_store(tmp_path).captures("again")
    assert len(captures) == 3
    for capture, request in zip(captures, requests, strict=True):
        assert_complete(capture, request)


def test_a_clock_that_jumps_back_changes_no_order(tmp_path: Path) -> None:
    """Captures follow each other by number; waiting is measured on a clock that never jumps."""
    clock = write_text(tmp_path / "clock", "0")
    environ = {"PYTHONPATH": str(WRITER_HOST), "HS_TEST_CLOCK": str(clock)}
    before, across, after = (prompt(key, 20, rid="same") for key in range(3))
    with CaptureServer(tmp_path / "dump", environ=environ) as server:
        server.prefill((before, 0, 20))
        server.prefill((across, 0, 12))
        wait_until(lambda: len(server.index()) == 1, "the first capture")
        old = server.status().heartbeat
        write_text(clock, "-7200")
        server.prefill((across, 12, 8))
        wait_until(lambda: len(server.index()) == 2, "the second capture")
        wait_until(lambda: server.status().heartbeat < old - 7000, "a heartbeat by the new clock")
        now = server.status().heartbeat
        wait_until(lambda: server.status().heartbeat > now, "another heartbeat")
        server.kill_writer()
        server.prefill((after, 0, 20))
    captures = server.store().captures("same")
    assert [capture.sequence for capture in captures] == [0, 1, 2]
    for capture, request in zip(captures, (before, across, after), strict=True):
        assert_complete(capture, request)
    published = [line.published for line in server.index()]
    assert published[0] > published[1] + 7000
    assert server.status().counters["captures"] == 3


def test_a_clock_that_jumps_forward_closes_nothing_early(tmp_path: Path) -> None:
    """Records without news are closed after ten minutes, but not of this clock."""
    clock = write_text(tmp_path / "clock", "0")
    environ = {"PYTHONPATH": str(WRITER_HOST), "HS_TEST_CLOCK": str(clock)}
    request = prompt(0, 20)
    with CaptureServer(tmp_path / "dump", environ=environ) as server:
        server.prefill((request, 0, 12))
        wait_until((server.run_dir / "status-tp0.json").exists, "the status file")
        old = server.status().heartbeat
        write_text(clock, "7200")
        wait_until(lambda: server.status().heartbeat > old + 7000, "a heartbeat by the new clock")
        assert server.status().counters["open_records"] == 1
    assert_incomplete(server.store()["r0"], request, "server_stopped", [(12, 20)])
