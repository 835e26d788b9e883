"""The writer as a process of its own: how it starts, waits and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capture_server import (
    SECONDS,
    CaptureServer,
    assert_complete,
    assert_incomplete,
    prompt,
    wait_until,
)
from harness import processes
from hs_capture import open_store
from hs_capture.ring.message import Closed, Message, Opened, StreamSpec
from hs_capture.verify.runs import HEARTBEAT_LIMIT
from hs_capture.writer import config as writer_config
from hs_capture.writer import process
from hs_capture.writer.config import WriterConfig


def test_the_configuration_survives_the_way() -> None:
    sent = WriterConfig(
        ring=3,
        bell=4,
        run_dir="/tmp/räd",
        rank="dp0-pp0-tp0",
        file_mode=0o640,
        reserve_bytes=1 << 40,
        workers=3,
        server_pid=17,
        streams=(StreamSpec("layer.-1", "bfloat16", 7168),),
        splits_planes=False,
        metadata={"layer_ids": [-1], "run_id": "x"},
    )
    assert WriterConfig.decode(sent.encode()) == sent


def test_it_is_no_descendant_and_has_a_session_of_its_own(tmp_path: Path) -> None:
    """A server that kills all that descends from it does not kill the writer."""
    with CaptureServer(tmp_path) as server:
        pid = server.writer_pid()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        parent, session = int(fields[1]), int(fields[3])
        assert parent != os.getpid()
        assert session not in (os.getsid(0), os.getpid())
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


def test_it_may_use_all_cores_though_its_server_is_pinned_to_one(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
os.sched_setaffinity(0, range({os.sysconf("SC_NPROCESSORS_CONF")}))
print(Path("/proc/self/status").read_text())
"""
    unpinned = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    ).stdout
    before = os.sched_getaffinity(0)
    core = max(before)
    # This is the affinity of the thread that starts the writer, as a scheduler's main thread does.
    os.sched_setaffinity(0, {core})
    try:
        assert _allowed_cores("thread-self") == str(core)
        with CaptureServer(tmp_path) as server:
            first = server.writer_pid()
            found = [_allowed_cores(first)]
            server.kill_writer()
            found.append(_allowed_cores(server.writer_pid()))
    finally:
        os.sched_setaffinity(0, before)
    assert found == [_cores_in(unpinned)] * 2


def test_it_loads_neither_torch_nor_sglang() -> None:
    code = "import sys, json, hs_capture.writer.__main__; print(json.dumps(sorted(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    ).stdout
    loaded = {name.partition(".")[0] for name in json.loads(said)}
    assert not loaded & {"torch", "sglang", "transformers", "wrapt"}


def test_a_server_that_captures_nothing_leaves_an_empty_run(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        assert server.status().state == "serving"
        assert server.status().last_capture is None
    assert len(server.store()) == 0
    assert {path.name for path in server.run_dir.iterdir()} == {
        "run.json",
        "index-tp0.jsonl",
        "status-tp0.json",
    }
    assert server.status().state == "ended"


def test_its_heart_beats_while_there_is_nothing_to_do(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        first = server.status().heartbeat
        wait_until(lambda: server.status().heartbeat > first, "another heartbeat")
        # After that time without one it would count as dead.
        assert server.status().heartbeat - first < HEARTBEAT_LIMIT


def test_a_server_that_is_killed_is_outlived_until_all_is_stored(tmp_path: Path) -> None:
    """The server is a process of its own here, and gets no chance to say anything."""
    code = """
import os, signal, sys
from pathlib import Path
from capture_server import CaptureServer, prompt
server = CaptureServer(Path(sys.argv[1]))
server.launcher.start()
for key in range(20):
    server.prefill((prompt(key, 30), 0, 30))
server.prefill((prompt(99, 30), 0, 10))
print(server.mark, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    tests = str(Path(__file__).resolve().parents[2])
    server = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": tests},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert server.returncode == -9
    assert processes.wait_until_gone(-1, server.stdout.strip(), SECONDS) == []
    store = open_store(tmp_path)
    assert len(store) == 21
    for key in range(20):
        assert_complete(store[f"r{key}"], prompt(key, 30))
    assert_incomplete(store["r99"], prompt(99, 30), "server_stopped", [(10, 30)])


def test_what_a_dead_writer_left_unfinished_is_removed(tmp_path: Path) -> None:
    server = CaptureServer(tmp_path)
    folder = server.run_dir / "open"
    folder.mkdir()
    (folder / "tp0-5.part").write_bytes(b"half a capture")
    with server:
        wait_until(lambda: not (folder / "tp0-5.part").exists(), "the removal")
    assert not folder.exists()


def test_the_time_for_what_is_left_is_as_promised() -> None:
    """What is queued is finished within ten seconds of the server's end."""
    assert 0 < process.LAST_WORK_SECONDS <= 10.0


def test_below_the_reserve_nothing_is_stored_but_told_and_the_end_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system counts as full; the writer gives up some time after the server is gone."""
    monkeypatch.setattr(process, "LAST_WORK_SECONDS", 0.3)
    server = CaptureServer(tmp_path, reserve=1 << 60)
    bell, ring_it = os.pipe()
    config = replace(server.config, ring=server.producer.descriptor, bell=bell)
    writer = process.Writer(config)
    message = Message(opened=[Opened(0, "r0", 0, 0)]).encode()
    slot = server.producer.reserve(len(message), 0)
    assert slot is not None
    server.producer.publish(slot, message)
    os.close(ring_it)
    started = time.monotonic()
    writer.run()
    # The server was gone when it began; the rest is for a slow machine.
    assert 0.3 <= time.monotonic() - started < 60
    assert server.drained
    (line,) = server.index()
    assert (line.file, line.rid, line.incomplete_reason) == (None, "r0", "file_system_full")
    assert server.status().state == "ended"
    os.close(bell)
    os.close(server.producer.descriptor)


def test_room_is_bytes_and_inodes_but_for_what_has_no_limit() -> None:
    """`mount -t tmpfs -o size=0,nr_inodes=0` says 0 of all."""
    plain = {"f_blocks": 100, "f_bavail": 11, "f_frsize": 4096, "f_files": 9000, "f_favail": 2000}

    def room(**more: int) -> bool:
        space: Any = SimpleNamespace(**{**plain, **more})
        return process.has_room(space, 10 * 4096)

    assert room()
    assert not room(f_bavail=10)
    assert not room(f_favail=1024)
    assert room(f_favail=0, f_files=0)
    assert room(f_bavail=0, f_blocks=0)
    assert not room(f_bavail=0)


def test_requests_of_which_nothing_more_is_heard_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand aborted ones, of which the server does not know either that they are gone."""
    monkeypatch.setattr(writer_config, "RECORD_SECONDS", 0.5)
    with CaptureServer(tmp_path) as server:
        pid = server.writer_pid()
        wait_until(lambda: server.status().writer_pid == pid, "a writer at work")
        before = _open_files(pid)
        for key in range(1000):
            server.prefill((prompt(key, 3), 0, 2))
            if key % 100 == 99:
                _wait_for_lines(server.run_dir / "index-tp0.jsonl", key + 1)
        wait_until(lambda: server.status().counters["open_records"] == 0, "closed records")
        assert _open_files(pid) == before
        assert server.drained
        server.prefill((prompt(999, 3), 2, 1))
        wait_until(lambda: server.status().counters["rows_late"] == 1, "the late row")
    counters = server.status().counters
    assert (counters["captures"], counters["incomplete"]) == (1000, 1000)
    assert (counters["writer_errors"], counters["rows_dropped"]) == (0, 0)
    for key in (0, 500, 999):
        assert_incomplete(server.store()[f"r{key}"], prompt(key, 3), "aborted", [(2, 3)])


def test_small_records_wait_in_the_ring_while_all_threads_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken all at once, each would be many times its size in memory."""
    monkeypatch.setattr(process, "MOST_PENDING_BLOCKS", 8)
    server = CaptureServer(tmp_path)
    bell, ring_it = os.pipe()
    writer = process.Writer(replace(server.config, ring=server.producer.descriptor, bell=bell))
    go_on = threading.Event()
    for _ in range(2 * server.config.workers):
        writer._pool.submit(go_on.wait)
    for key in range(200):
        message = Message(opened=[Opened(key, f"r{key}", 1, 0)], closed=[Closed(key, f"r{key}", 1)])
        encoded = message.encode()
        slot = server.producer.reserve(len(encoded), 8)
        assert slot is not None
        server.producer.publish(slot, encoded)
    running = threading.Thread(target=writer.run)
    running.start()
    try:
        wait_until(lambda: writer._busy, "a writer with enough to do")
        assert writer._assembler.pending_blocks == 8
    finally:
        go_on.set()
        os.close(ring_it)
        running.join()
    assert {line.rid for line in server.index()} == {f"r{key}" for key in range(200)}
    assert server.drained
    os.close(bell)
    os.close(server.producer.descriptor)


def _allowed_cores(process: int | str) -> str:
    return _cores_in(Path(f"/proc/{process}/status").read_text())


def _cores_in(status: str) -> str:
    return status.partition("Cpus_allowed_list:")[2].splitlines()[0].strip()


def _open_files(pid: int) -> int:
    """How many files a writer has open, but for a status file that it is just writing."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(link.readlink()))
    return len([name for name in links if ".status-" not in name])


def _wait_for_lines(index: Path, count: int) -> None:
    wait_until(lambda: index.read_bytes().count(b"\n") == count, f"{count} lines")
