"""Real servers that are killed, or asked to end, in the middle of their work."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from harness import processes
from harness.client import RefusedError, generate_concurrently
from harness.compare import TOLERANCE, relative_error
from harness.launching import Zygote
from harness.prompts import prompt
from harness.server import Serve, Server, ServerConfig
from hs_capture import open_store
from hs_capture.format.index import read_index
from hs_capture.format.run import Status
from hs_capture.soundness import examine, newest_files

LENGTH = 300
"""Tokens of a prompt: 600 KB of states, in chunks of 64."""
KILLS = 20
LAST_SECONDS = 15
"""How long a writer may outlive its server: ten seconds, and the end of the process."""


def _config(model: Path, dump_dir: Path) -> ServerConfig:
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    return ServerConfig(model, environment, chunk=64)


def _under_load(server: Server, requests: int) -> threading.Thread:
    """Send so many requests, eight at a time, until the server does not answer any more."""

    def send() -> None:
        prompts = [(f"r{number}", prompt(number, LENGTH)) for number in range(requests)]
        with suppress(OSError, HTTPException, RefusedError):
            generate_concurrently(server.url, prompts, at_once=8)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def _newest_run(dump_dir: Path) -> Path:
    return max(dump_dir.glob("*/run.json"), key=lambda path: path.stat().st_mtime).parent


def _wait_for_captures(dump_dir: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(_newest_run(dump_dir).glob("*/*.hsc")):
        assert time.monotonic() < deadline, "nothing was captured"
        time.sleep(0.02)


def _assert_sound(dump_dir: Path) -> int:
    store = open_store(dump_dir)
    examined = [examine(path) for run in dump_dir.iterdir() for path in newest_files(run, None)]
    assert [one.problem for one in examined if one is not None and one.problem] == []
    return len(store)


def test_two_servers_share_a_directory(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> None:
    """Each has a run of its own; the same rid in both is two captures."""
    dump_dir = tmp_path / "dump"
    config = _config(model, dump_dir)
    with serve(zygote, config) as one, serve(zygote, config) as two:
        loads = [_under_load(server, 20) for server in (one, two)]
        for load in loads:
            load.join()
    store = open_store(dump_dir)
    assert len(store.runs) == 2
    assert len(store) == 40
    for number in range(20):
        pair = store.captures(f"r{number}")
        assert [capture.complete for capture in pair] == [True, True]
        for capture in pair:
            assert capture.input_ids.tolist() == prompt(number, LENGTH)
        found, expected = (capture.last_hidden_states("pre_norm") for capture in pair)
        assert relative_error(found, expected) < TOLERANCE


def test_killed_servers_leave_sound_files_and_the_next_one_cleans_up(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> None:
    """All are killed together with their writers; the last one is asked to end under load."""
    dump_dir = tmp_path / "dump"
    chance = random.Random(5)
    published: set[Path] = set()
    unfinished = 0
    for _ in range(KILLS):
        with serve(zygote, _config(model, dump_dir)) as server:
            assert list(dump_dir.rglob("*.part")) == []
            assert set(dump_dir.rglob("*.hsc")) == published
            load = _under_load(server, 400)
            _wait_for_captures(dump_dir)
            time.sleep(chance.uniform(0, 1))
            server.kill()
            assert _assert_sound(dump_dir) > len(published)
            load.join()
        published = set(dump_dir.rglob("*.hsc"))
        unfinished += len(list(dump_dir.rglob("*.part")))
    assert unfinished > 0
    with serve(zygote, _config(model, dump_dir)) as server:
        assert list(dump_dir.rglob("*.part")) == []
        # SGLang answers what it has begun, and ends when there is nothing left.
        load = _under_load(server, 8)
        _wait_for_captures(dump_dir)
        run = _newest_run(dump_dir)
        os.kill(server.pid, signal.SIGTERM)
        server.wait_until_ended()
        assert processes.wait_until_gone(server.pid, server.mark, LAST_SECONDS) == []
        load.join()
    (index,) = run.glob("index-*.jsonl")
    lines = read_index(index)
    # The server numbers its requests, so none that had begun may be missing.
    assert sorted(str(line.key) for line in lines) == sorted(map(str, range(len(lines))))
    assert {line.incomplete_reason for line in lines} <= {None, "server_stopped", "aborted"}
    (file,) = run.glob("status-*.json")
    assert Status.read(file).state == "ended"
    assert _assert_sound(dump_dir) > len(published)
    assert list(dump_dir.rglob("*.part")) == []
