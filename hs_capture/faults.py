"""Errors that must not stop anything: counted always, logged at most once a minute."""

from __future__ import annotations

import logging
import threading
import time

QUIET_SECONDS = 60.0


class FaultLog:
    """Counts errors of one process and logs the first of every minute. Threads may share it."""

    def __init__(self, logger: logging.Logger) -> None:
        """Log to `logger`."""
        self.count = 0
        self.last: str | None = None
        self._logger = logger
        self._lock = threading.Lock()
        self._quiet_until = 0.0

    def record(self, what: str, error: BaseException) -> bool:
        """Count that `what` failed with `error`; return whether it was logged."""
        now = time.monotonic()
        with self._lock:
            self.count += 1
            self.last = f"{what}: {type(error).__name__}: {error}"
            loud = now >= self._quiet_until
            if loud:
                self._quiet_until = now + QUIET_SECONDS
        if loud:
            self._logger.error(
                "hs-capture: %s (error %d; further ones are counted, see `hs-capture verify`)",
                self.last,
                self.count,
                exc_info=error,
            )
        return loud
