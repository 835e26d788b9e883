"""Runs `hs-capture verify --json` and hands back what it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from capture_files import RUN, states, write_capture, write_run
from hs_capture.cli import main
from hs_capture.format.run import RunInfo, Status
from hs_capture.settings import PREFIX
from hs_capture.verify.processes import Server, find_servers

Verify = Callable[..., "Answer"]
NewRun = Callable[..., Path]


@dataclass(frozen=True)
class Answer:
    """What verify said: its exit code, and the object it printed."""

    exit_code: int
    said: dict[str, Any]

    def check(self, name: str) -> dict[str, str]:
        """The only check of this name."""
        found = self.checks(name)
        assert len(found) == 1, self.said["checks"]
        return found[0]

    def checks(self, name: str) -> list[dict[str, str]]:
        """All checks of this name."""
        return [check for check in self.said["checks"] if check["name"] == name]


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the shell that runs the tests gets in."""
    for name in [n for n in os.environ if n.startswith(PREFIX) or n == "SGLANG_PLUGINS"]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_server_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify sees the servers that a test starts, and no other one that this machine runs."""

    def started_here(marks: Sequence[str]) -> list[Server]:
        return [server for server in find_servers(marks) if server.root.parent == os.getpid()]

    monkeypatch.setattr("hs_capture.verify.diagnosis.find_servers", started_here)


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are exact however slow the machine is."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """An empty dump directory."""
    path = tmp_path / "dump"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def verify(dump: Path, capsys: pytest.CaptureFixture[str]) -> Verify:
    """Run verify on the dump directory, with more arguments; --dump-dir is given unless told."""

    def run(*arguments: str, directory: Path | None = dump) -> Answer:
        place = [] if directory is None else ["--dump-dir", str(directory)]
        code = main(["verify", "--json", *place, *arguments])
        return Answer(code, json.loads(capsys.readouterr().out))

    return run


@pytest.fixture
def new_run(dump: Path) -> NewRun:
    """Write a run as a server leaves it: run.json, a status file, and sound captures."""

    def write(
        captures: int = 0,
        *,
        state: str = "serving",
        age: float = 0.0,
        counters: dict[str, int] | None = None,
        last_error: str | None = None,
        writer_pid: int | None = None,
        **info: Any,
    ) -> Path:
        facts: RunInfo = replace(RUN, **{"created": time.time(), "server_pid": os.getpid(), **info})
        run = write_run(dump, facts)
        tokens = 0
        for sequence in range(captures):
            rows = {f"layer.{i}": states(5, seed=10 * sequence + i) for i in facts.layer_ids}
            rows["final.pre_norm"] = states(5, seed=10 * sequence + 9)
            write_capture(run, sequence, f"rid-{sequence}", rows, run_id=facts.run_id)
            tokens += 5
        Status(
            run_id=facts.run_id,
            rank=facts.rank,
            state=state,
            server_pid=facts.server_pid,
            writer_pid=os.getpid() if writer_pid is None else writer_pid,
            started=facts.created,
            heartbeat=time.time() - age,
            last_capture=time.time() - age if captures else None,
            counters={
                "captures": captures,
                "complete": captures,
                "incomplete": 0,
                "tokens": tokens,
                "raw_bytes": tokens * 64,
                "stored_bytes": tokens * 48,
                **(counters or {}),
            },
            last_error=last_error,
        ).write(run / f"status-{facts.rank}.json")
        return run

    return write


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid
