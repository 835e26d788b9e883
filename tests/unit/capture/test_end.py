"""The server's end, with rows that cannot be stored any more: every request is told."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

from capture_server import CaptureServer, LatePlanes, prompt


def test_rows_that_never_arrived_from_the_device_are_told(tmp_path: Path) -> None:
    with CaptureServer(tmp_path, late_planes=True) as server:
        server.prefill((prompt(0, 5), 0, 5))
        server.wait_drained()
        assert isinstance(server.copier, LatePlanes)
        server.copier.seconds = None
        for key in range(1, 6):
            server.prefill((prompt(key, 7), 0, 7))
    reasons = Counter(line.incomplete_reason for line in server.index())
    assert reasons == {None: 1, "server_stopped": 5}


def test_what_waits_for_room_when_the_server_ends_is_told(tmp_path: Path) -> None:
    """With all of the file system reserved nothing is stored, and no request is forgotten."""
    space = os.statvfs(tmp_path)
    with CaptureServer(tmp_path, reserve=space.f_blocks * space.f_frsize) as server:
        for key in range(20):
            server.prefill((prompt(key, 3), 0, 3))
    lines = server.index()
    assert Counter(line.incomplete_reason for line in lines) == {"file_system_full": 20}
    assert sorted(line.rid for line in lines) == sorted(f"r{key}" for key in range(20))


def test_the_folder_of_open_files_may_be_cleaned_away(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        server.prefill((prompt(0, 3), 0, 3))
        server.wait_drained()
        shutil.rmtree(server.run_dir / "open")
        server.prefill((prompt(1, 3), 0, 3))
    assert [line.complete for line in server.index()] == [True, True]
