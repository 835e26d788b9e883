"""When a request is over, nothing of it is kept, however it ended."""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from pathlib import Path

import pytest

from capture_server import CaptureServer, prompt
from hs_capture.capture import owed
from hs_capture.capture.batch import Request, batch_of


def _kept(server: CaptureServer) -> dict[str, int]:
    """The size of everything that tap and sender collect, where it is not empty."""
    sender = server.tap._sender
    collections = {
        name: value
        for name, value in (vars(server.tap) | vars(sender) | vars(sender._owed)).items()
        if isinstance(value, dict | set | deque)
    }
    assert len(collections) >= 4
    return {name: len(value) for name, value in collections.items() if value}


def _end(server: CaptureServer, requests: list[Request]) -> None:
    """The requests leave the server."""
    server.tap.forget([request.key for request in requests])


def test_whole_aborted_and_lost_requests_leave_nothing(tmp_path: Path) -> None:
    requests = [prompt(key, 6) for key in range(300)]
    whole, aborted, lost = requests[:100], requests[100:200], requests[200:]
    with CaptureServer(tmp_path) as server:
        for first, second, third in zip(whole, aborted, lost, strict=True):
            server.prefill((first, 0, 6), (second, 0, 3))
            server.tap.lose(batch_of([(third, 0, 3)]), "hook_error")
        _end(server, requests)
        assert _kept(server) == {}
        server.wait_drained()
    assert len(server.index()) == 300


@pytest.mark.parametrize("kept_ends", [owed.OWED_ENDS, 30, 0])
def test_a_writer_that_stands_still_for_long_hears_of_every_request_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_ends: int
) -> None:
    """Word of losses waits in three sizes: whole, as an end, and at last as a number."""
    monkeypatch.setattr(owed, "OWED_DRAFTS", 3)
    monkeypatch.setattr(owed, "OWED_ENDS", kept_ends)
    requests = [prompt(key, 1800) for key in range(120)]
    with CaptureServer(tmp_path, block=False) as server:
        server.prefill(*((request, 0, 1) for request in requests[:20]))
        pid = server.stop_writer()
        for request in requests[20:]:
            server.prefill((request, 0, 40))
        for request in requests[20:]:
            server.prefill((request, 40, 40))
        for request in requests:
            _end(server, [request])
        os.kill(pid, signal.SIGCONT)
        server.wait_drained()
        _end(server, [])
        server.wait_drained()
        untold = server.counter("requests_untold")
        assert _kept(server) == {}
    lines = server.index()
    assert len({line.key for line in lines}) == len(lines) == 120 - untold
    assert (untold == 0) == (kept_ends > 120)
    reasons = Counter(line.incomplete_reason for line in lines)
    # Where the end itself went untold the writer closes for lack of news what it knew.
    assert set(reasons) <= {"dropped", "aborted", "server_stopped"}
    assert reasons["dropped"] >= (0 if untold else 100)
    assert server.counter("rows_taken") == sum(line.rows for line in lines)


@pytest.mark.parametrize("kept_ends", [owed.OWED_ENDS, 5])
def test_a_request_of_many_entries_of_which_nothing_can_be_kept_ends_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_ends: int
) -> None:
    """It is over with the first of them: the others, with its last row, tell of it no more."""
    monkeypatch.setattr(owed, "OWED_DRAFTS", 3)
    monkeypatch.setattr(owed, "OWED_ENDS", kept_ends)
    requests = [prompt(key, 400) for key in range(80)]
    with CaptureServer(tmp_path, block=False) as server:
        pid = server.stop_writer()
        for request in requests:
            server.prefill((request, 0, 400))
            _end(server, [request])
        os.kill(pid, signal.SIGCONT)
        server.wait_drained()
        _end(server, [])
        server.wait_drained()
        untold = server.counter("requests_untold")
        assert _kept(server) == {}
    lines = server.index()
    assert len({line.key for line in lines}) == len(lines) == 80 - untold
    assert (untold == 0) == (kept_ends > 80)
    assert {line.incomplete_reason for line in lines} == {"dropped"}
    assert server.status().counters["lost"] == sum(line.file is None for line in lines)
