"""Sets of token positions as sorted, disjoint half-open intervals (start, stop)."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the positions in any of `intervals`, touching intervals joined."""
    joined: list[Interval] = []
    for start, stop in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def subtract(interval: Interval, taken: Iterable[Interval]) -> list[Interval]:
    """Return the positions of `interval` that no interval of `taken` holds."""
    left: list[Interval] = []
    start, stop = interval
    for taken_start, taken_stop in union(taken):
        if taken_stop <= start or taken_start >= stop:
            continue
        if start < taken_start:
            left.append((start, taken_start))
        start = max(start, taken_stop)
    if start < stop:
        left.append((start, stop))
    return left


def length(intervals: Iterable[Interval]) -> int:
    """Return how many positions disjoint `intervals` hold."""
    return sum(stop - start for start, stop in intervals)
