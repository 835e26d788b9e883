"""One line that is written over on a terminal, and lines now and then elsewhere."""

from __future__ import annotations

import io

import pytest

from fake_terminal import Clock, Terminal
from hs_capture import progress
from hs_capture.progress import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.mark.parametrize(("stream", "seconds"), [(Terminal(), 0.2), (io.StringIO(), 10.0)])
def test_it_is_due_now_and_then(clock: Clock, stream: io.StringIO, seconds: float) -> None:
    line = ProgressLine(stream)
    due = []
    for share in (0.0, 0.9, 1.1, 1.2, 2.0, 2.2):
        clock.now = 100.0 + share * seconds
        due.append(line.due())
    assert due == [False, False, True, False, False, True]


def test_a_terminal_has_one_line(clock: Clock) -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    line.tell("1 of 2")
    line.say("failed: line 1")
    line.tell("2 of 2", last=True)
    line.wipe()
    wipe = "\r\033[K"
    assert stream.getvalue() == f"{wipe}1 of 2{wipe}failed: line 1\n{wipe}2 of 2\n{wipe}"


def test_elsewhere_each_is_a_line(clock: Clock) -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.tell("1 of 2")
    line.say("failed: line 1")
    line.tell("2 of 2", last=True)
    line.wipe()
    assert stream.getvalue() == "1 of 2\nfailed: line 1\n2 of 2\n"
