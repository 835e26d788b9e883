"""Servers that are killed at any moment: what was published is sound, what was not is told."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from capture_server import SECONDS, assert_complete, kill, prompt, wait_until
from harness import processes
from hs_capture import open_store
from hs_capture.format.index import read_index
from hs_capture.format.run import Status
from hs_capture.soundness import examine, newest_files
from hs_capture.writer.leftovers import remove_leftovers

TESTS = Path(__file__).resolve().parents[2]
KILLS = 10


@pytest.fixture(scope="module")
def servers() -> Iterator[subprocess.Popen[str]]:
    """What starts servers; see `kill_server`."""
    starter = subprocess.Popen(
        [sys.executable, str(TESTS / "kill_server.py")],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        yield starter
        assert starter.stdin is not None
        starter.stdin.close()


def _kill(servers: subprocess.Popen[str], run_dir: Path, moment: float, with_writer: bool) -> None:
    """Start a server, let it work, kill it `moment` seconds after its first capture."""
    assert servers.stdin is not None
    assert servers.stdout is not None
    print(run_dir.parent, run_dir.name, file=servers.stdin, flush=True)
    pid, mark = servers.stdout.readline().split()
    index = run_dir / "index-tp0.jsonl"
    wait_until(lambda: index.exists() and index.stat().st_size > 0, "a capture")
    time.sleep(moment)
    writers = [process.pid for process in processes.of_server(-1, mark)] if with_writer else []
    # The server first: it would start another writer. Both end at once all the same.
    for victim in (int(pid), *writers):
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    _assert_sound(run_dir)
    for victim in (int(pid), *writers):
        kill(victim)
    assert processes.wait_until_gone(int(pid), mark, SECONDS) == []


def _assert_sound(run_dir: Path) -> None:
    """The store can be read at once, though a writer may still be at work."""
    store = open_store(run_dir.parent)
    captures = [one for one in store if one.run is not None and one.run.run_id == run_dir.name]
    assert captures
    for capture in captures[-5:]:
        if capture.complete:
            key = int(capture.rid[1:])
            assert_complete(capture, prompt(key, capture.num_tokens))
    examined = [examine(path) for path in newest_files(run_dir, 50)]
    assert [one.problem for one in examined if one is not None and one.problem] == []


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_server_is_outlived_until_every_request_is_told(
    servers: subprocess.Popen[str], tmp_path: Path, seed: int
) -> None:
    """All that reached the ring has a line; only what was being computed is missing."""
    run_dir = tmp_path / f"run-{seed}"
    _kill(servers, run_dir, random.Random(seed).uniform(0, 0.2), with_writer=False)
    _assert_sound(run_dir)
    lines = read_index(run_dir / "index-tp0.jsonl")
    assert sorted(str(line.key) for line in lines) == sorted(map(str, range(len(lines))))
    reasons = {line.incomplete_reason for line in lines}
    assert reasons <= {None, "server_stopped"}
    assert sum(not line.complete for line in lines) <= 2
    assert Status.read(run_dir / "status-tp0.json").state == "ended"
    assert list(tmp_path.rglob("*.part")) == []


def test_where_the_writer_is_killed_too_the_next_server_cleans_up(
    servers: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Ten times in one directory. Published files stay, also those without a line."""
    chance = random.Random(99)
    for number in range(KILLS):
        run_dir = tmp_path / f"run-{number}"
        _kill(servers, run_dir, chance.uniform(0, 0.2), with_writer=True)
        published = set(tmp_path.rglob("*.hsc"))
        unfinished = len(list(tmp_path.rglob("*.part"))) + len(list(tmp_path.rglob("*.tmp")))
        assert remove_leftovers(tmp_path) == unfinished
        assert list(tmp_path.rglob("*.part")) == []
        assert set(tmp_path.rglob("*.hsc")) == published
        _assert_sound(run_dir)
        keys = [line.key for line in read_index(run_dir / "index-tp0.jsonl")]
        assert len(keys) == len(set(keys))
    assert len(open_store(tmp_path)) == len(published)
