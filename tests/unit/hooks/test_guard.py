"""Nothing of ours raises into the server."""

from __future__ import annotations

import logging
import time

import pytest

from hs_capture.hooks.guard import Guard


def test_an_error_ends_the_block_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    guard, told = Guard(), []
    guard.tell = lambda text, loud: told.append((text, loud))
    done = []
    for i in range(2):
        with guard("counting"):
            raise ValueError(f"no {i}")
        done.append(i)
    assert done == [0, 1]
    assert told == [("counting: ValueError: no 0", True), ("counting: ValueError: no 1", False)]
    assert len(caplog.records) == 1
    assert caplog.records[0].name == "hs_capture"
    assert caplog.records[0].levelno == logging.ERROR


def test_an_error_while_telling_is_swallowed_too() -> None:
    def tell(text: str, loud: bool) -> None:
        raise OSError("the ring is gone")

    guard = Guard()
    guard.tell = tell
    with guard("counting"):
        raise ValueError("no")


def test_an_exit_goes_through() -> None:
    """A server that is told to stop must stop."""
    with pytest.raises(SystemExit), Guard()("counting"):
        raise SystemExit(1)


def test_the_time_of_our_blocks_is_measured_once_and_without_what_is_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([1_000, 4_500, 100_000, 103_000, 200_000, 200_400])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))
    guard = Guard()
    with guard("a block"), guard("a block in it"):
        pass
    with guard("one that fails"):
        raise ValueError("no")
    assert guard.take_microseconds() == 6
    with guard("a short one"):
        pass
    # 500 ns were left over.
    assert guard.take_microseconds() == 0
    assert guard.take_microseconds() == 0
    assert next(clock, None) is None
