"""Intervals behave like the sets of integers that they stand for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_capture.intervals import Interval, length, subtract, union

interval = st.tuples(st.integers(0, 40), st.integers(0, 40))
some = st.lists(interval, max_size=8)


def positions(*intervals: Interval) -> set[int]:
    return {position for pair in intervals for position in range(*pair)}


def assert_normal(intervals: list[Interval]) -> None:
    """Sorted, none empty, and never two that touch."""
    assert all(start < stop for start, stop in intervals)
    assert all(before[1] < after[0] for before, after in pairwise(intervals))


@given(some)
def test_a_union_holds_what_any_interval_holds(intervals: list[Interval]) -> None:
    joined = union(intervals)
    assert positions(*joined) == positions(*intervals)
    assert_normal(joined)


@given(interval, some)
def test_a_difference_holds_what_no_taken_interval_holds(
    whole: Interval, taken: list[Interval]
) -> None:
    left = subtract(whole, taken)
    assert positions(*left) == positions(whole) - positions(*taken)
    assert_normal(left)


@given(some)
def test_the_length_of_a_union_counts_its_positions(intervals: list[Interval]) -> None:
    assert length(union(intervals)) == len(positions(*intervals))


@pytest.mark.parametrize(
    ("whole", "taken", "left"),
    [
        ((0, 10), [], [(0, 10)]),
        ((0, 10), [(0, 10)], []),
        ((0, 10), [(3, 5), (5, 7)], [(0, 3), (7, 10)]),
        ((0, 10), [(8, 20)], [(0, 8)]),
        ((0, 10), [(10, 20)], [(0, 10)]),
        ((4, 4), [(0, 9)], []),
        ((6, 4), [], []),
    ],
)
def test_differences_by_example(
    whole: Interval, taken: list[Interval], left: list[Interval]
) -> None:
    assert subtract(whole, taken) == left
