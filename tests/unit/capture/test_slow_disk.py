"""A disk that is too slow for a while: blocking, dropping, recovery, and every request is told."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from capture_server import WRITER_HOST, CaptureServer, assert_complete, prompt, wait_until
from harness.atomically import write_text
from hs_capture.soundness import examine, newest_files
from hs_capture.writer import process

FAST = "1e12"
LENGTH = 40


def _environ(speed: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(WRITER_HOST), "HS_TEST_DISK": str(speed)}


def _assert_all_sound(server: CaptureServer, sent: int) -> Counter[str | None]:
    """Every request has one line, every file is right; return the lines by their reason."""
    lines = server.index()
    assert sorted(str(line.key) for line in lines) == sorted(map(str, range(sent)))
    examined = [examine(path) for path in newest_files(server.run_dir, None)]
    assert [one.problem for one in examined if one is not None and one.problem] == []
    assert len(examined) == sum(line.file is not None for line in lines)
    for capture in server.store():
        if capture.complete:
            key = int(capture.rid[1:])
            assert_complete(capture, prompt(key, capture.num_tokens))
    return Counter(line.incomplete_reason for line in lines)


def test_a_slow_disk_holds_the_server_up_and_loses_nothing(tmp_path: Path) -> None:
    speed = write_text(tmp_path / "speed", "4e5")
    with CaptureServer(tmp_path / "dump", environ=_environ(speed)) as server:
        for key in range(15):
            server.prefill((prompt(key, LENGTH), 0, LENGTH))
        assert server.counter("blocked_microseconds") > 0
        assert server.counter("rows_dropped") == 0
    assert _assert_all_sound(server, 15) == {None: 15}


def test_dropped_and_captured_and_aborted_are_all_that_was_sent(tmp_path: Path) -> None:
    """Once the disk is fast again, capture goes on by itself."""
    speed = write_text(tmp_path / "speed", "3e5")
    with CaptureServer(
        tmp_path / "dump", block=True, timeout=0.2, environ=_environ(speed)
    ) as server:
        for key in range(20):
            server.prefill((prompt(key, LENGTH), 0, LENGTH))
        assert server.counter("rows_dropped") > 0
        assert server.counter("blocked_microseconds") > 0
        write_text(speed, FAST)
        server.wait_drained()
        for key in range(20, 30):
            server.prefill((prompt(key, LENGTH), 0, 15))
        server.tap.forget([28, 29])
        # The disk is fast now; the machine need not be.
        server.wait_drained()
        for key in range(20, 28):
            server.prefill((prompt(key, LENGTH), 15, LENGTH - 15))
    reasons = _assert_all_sound(server, 30)
    assert reasons["aborted"] == 2
    assert reasons[None] == 28 - reasons["dropped"]
    assert 0 < reasons["dropped"] * LENGTH == server.counter("rows_dropped")
    for key in range(20, 28):
        assert server.store()[f"r{key}"].complete


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for some forty files more than the writer leaves."""
    path = tmp_path / "few"
    path.mkdir()
    options = f"nr_inodes={process.SPARE_INODES + 40},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hs-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_file_system_that_runs_out_of_inodes_holds_the_server_up(few_inodes: Path) -> None:
    """As one without bytes does: when somebody takes files away, nothing was lost."""
    with CaptureServer(few_inodes) as server:
        over = threading.Event()

        def take_away() -> None:
            wait_until(lambda: server.counter("blocked_microseconds") > 0, "a file system in use")
            while not over.wait(0.01):
                for path in server.run_dir.glob("*/*.hsc"):
                    path.unlink()

        taking = threading.Thread(target=take_away)
        taking.start()
        try:
            for key in range(100):
                server.prefill((prompt(key, LENGTH), 0, LENGTH))
        finally:
            over.set()
            taking.join()
    lines = server.index()
    assert sorted(str(line.key) for line in lines) == sorted(map(str, range(100)))
    assert {line.incomplete_reason for line in lines} == {None}


def test_at_the_servers_end_the_writer_works_on_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not stored by then is told. The writer runs in this process here.

    Once there is a capture, the disk takes nothing more until the writer has given up.
    """
    pwritev = os.pwritev

    def slow(file: int, parts: Sequence[memoryview], offset: int) -> int:
        if writer._publisher.counted()["captures"] > 0:
            wait_until(lambda: writer._assembler._given_up is not None, "the end of its time")
        return pwritev(file, parts, offset)

    monkeypatch.setattr(process, "LAST_WORK_SECONDS", 0.5)
    server = CaptureServer(tmp_path, buffer=1 << 23)
    for key in range(24):
        server.prefill((prompt(key, LENGTH), 0, LENGTH))
    bell, ring_it = os.pipe()
    config = replace(server.config, ring=server.producer.descriptor, bell=bell)
    writer = process.Writer(config)
    monkeypatch.setattr(os, "pwritev", slow)
    os.close(ring_it)
    writer.run()
    reasons = _assert_all_sound(server, 24)
    assert set(reasons) == {None, "server_stopped"}
    assert server.status().state == "ended"
    assert list(server.run_dir.rglob("*.part")) == []
    os.close(bell)
    os.close(server.producer.descriptor)
