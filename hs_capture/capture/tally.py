"""What the tap counts of the rows that pass by, in the ring's counters."""

from __future__ import annotations

import logging
import time

from hs_capture.ring.producer import Producer

logger = logging.getLogger(__name__)

QUIET_SECONDS = 60.0
"""So long the same is not said again of a writer that does not keep up."""


class Tally:
    """Counts rows taken and dropped, and the time that either cost. Used by one thread."""

    def __init__(self, producer: Producer) -> None:
        """Count in the ring of `producer`."""
        self._count = producer.count
        self._dropping_since: int | None = None
        self._quiet_until: dict[str, int] = {}

    def taken(self, rows: int, size: int, began: int) -> None:
        """Count `rows` of `size` bytes that went into the ring, which ends a time of dropping.

        Their copies were asked for from `began` (``time.perf_counter_ns``) until now.
        """
        self._count("rows_taken", rows)
        self._count("taken_bytes", size)
        self._count("copy_microseconds", _microseconds_since(began))
        self._count_dropping()
        self._dropping_since = None

    def dropped(self, rows: int) -> None:
        """Count `rows` that found no room."""
        self._count("rows_dropped", rows)
        if not rows:
            return
        self._warn("rows are dropped, whose captures will be incomplete")
        self._count_dropping()
        self._dropping_since = self._dropping_since or time.perf_counter_ns()

    def blocked(self, since: int) -> int:
        """Count the time from `since` (``time.perf_counter_ns``) until now, spent waiting for room.

        Returns the end of what is counted by now: whole microseconds.
        """
        microseconds = _microseconds_since(since)
        self._count("blocked_microseconds", microseconds)
        self._warn("the server waits")
        return since + 1000 * microseconds

    def _count_dropping(self) -> None:
        """Count the time since rows were dropped, or since it was last counted."""
        if self._dropping_since is not None:
            microseconds = _microseconds_since(self._dropping_since)
            self._count("dropping_microseconds", microseconds)
            self._dropping_since += 1000 * microseconds

    def _warn(self, what: str) -> None:
        now = time.perf_counter_ns()
        if now >= self._quiet_until.get(what, now):
            self._quiet_until[what] = now + round(1e9 * QUIET_SECONDS)
            logger.warning(
                "hs-capture: the ring is full and %s: the writer does not keep up, or the dump "
                "directory is down to its reserve (further times are counted, see "
                "`hs-capture verify`)",
                what,
            )


def _microseconds_since(began: int) -> int:
    return (time.perf_counter_ns() - began) // 1000
