"""Errors that stop nothing: all are counted, few are logged."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from hs_capture import faults
from hs_capture.faults import FaultLog

logger = logging.getLogger("hs_capture.test_faults")


def test_every_error_is_counted_and_the_first_of_a_minute_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FaultLog(logger)
    assert (log.count, log.last) == (0, None)
    assert log.record("reading a batch", ValueError("no rows")) is True
    assert log.record("reading a batch", KeyError("reqs")) is False
    assert log.record("closing a batch", OSError("gone")) is False
    assert log.count == 3
    assert log.last == "closing a batch: OSError: gone"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "reading a batch: ValueError: no rows (error 1;" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_after_a_quiet_time_the_next_error_is_logged_with_its_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    log = FaultLog(logger)
    assert [log.record("a", ValueError(str(i))) for i in range(3)] == [True, False, False]
    now += faults.QUIET_SECONDS
    assert log.record("a", ValueError("3")) is True
    assert "a: ValueError: 3 (error 4;" in caplog.records[-1].getMessage()


def test_threads_may_share_a_log(caplog: pytest.LogCaptureFixture) -> None:
    log = FaultLog(logger)
    error = ValueError("x")
    threads = [
        threading.Thread(target=lambda: [log.record("a", error) for _ in range(500)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.count == 4000
    assert len(caplog.records) == 1
