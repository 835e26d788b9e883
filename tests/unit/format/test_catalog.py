"""Where the runs of a directory are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from capture_files import write_run
from hs_capture.format.catalog import runs_in


def test_the_runs_of_a_directory_come_by_name(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    second = shutil.copytree(run, tmp_path / f"{run.name}-2")
    for beside in (".snapshot", "lost+found"):
        shutil.copytree(run, tmp_path / beside)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "run.json.bak").write_bytes(b"{}")
    assert runs_in(tmp_path) == [run, second]


def test_a_run_is_one_by_itself_also_a_hidden_one(tmp_path: Path) -> None:
    hidden = shutil.copytree(write_run(tmp_path / "dump"), tmp_path / ".run")
    assert runs_in(hidden) == [hidden]


def test_without_a_directory_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        runs_in(tmp_path / "dump")
