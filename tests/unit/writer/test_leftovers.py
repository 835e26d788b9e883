"""What killed writers left is removed by the next server, and nothing else."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

from capture_files import RUN, states, write_capture, write_run
from capture_server import CaptureServer, assert_complete, prompt, wait_until
from hs_capture import open_store
from hs_capture.writer.leftovers import remove_leftovers


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_unfinished_files_of_a_dead_run_go_and_its_captures_stay(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_capture(run, 0, "r", {"layer.1": states(4)})
    kept = _files(tmp_path)
    (run / "open").mkdir()
    (run / "open" / "tp0-7.part").write_bytes(b"half a capture")
    (run / "open" / "tp1-0.part").write_bytes(b"")
    (run / ".status-tp0.json.abc.tmp").write_bytes(b"{")
    assert remove_leftovers(tmp_path) == 3
    assert _files(tmp_path) == kept
    assert not (run / "open").exists()
    assert remove_leftovers(tmp_path) == 0
    assert len(open_store(tmp_path)) == 1


def test_what_is_no_run_or_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other" / "open").mkdir(parents=True)
    (tmp_path / "other" / "open" / "tp0-7.part").write_bytes(b"x")
    run = write_run(tmp_path)
    (run / "open").mkdir()
    (run / "open" / "notes.txt").write_bytes(b"x")
    before = _files(tmp_path)
    assert remove_leftovers(tmp_path) == 0
    assert remove_leftovers(tmp_path / "missing") == 0
    assert _files(tmp_path) == before


def test_a_run_whose_writer_lives_is_left_alone(tmp_path: Path) -> None:
    """However long it has not been heard of, and whatever its process id says elsewhere."""
    dead = write_run(tmp_path, replace(RUN, run_id="run-dead"))
    (dead / "open").mkdir()
    (dead / "open" / "tp0-1.part").write_bytes(b"x")
    request = prompt(0, 160)
    with CaptureServer(tmp_path) as server:
        server.prefill((request, 0, 120))
        part = server.run_dir / "open" / "tp0-0.part"
        wait_until(part.exists, "an unfinished file")
        pid = server.stop_writer()
        assert remove_leftovers(tmp_path) == 1
        assert part.exists()
        assert not (dead / "open").exists()
        os.kill(pid, signal.SIGCONT)
        server.prefill((request, 120, 40))
    assert_complete(server.store()["r0"], request)
