"""Lineage becomes links only where key, position and token id all hold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_capture.format.links import Link
from hs_capture.writer.lineage import LINEAGE_BYTES, links_of

IDS = [50 + i for i in range(12)]


def found(rows: list[tuple[int, int, int] | None], own: int = 99) -> tuple[Link, ...]:
    """Links of a prefix whose slots were computed with (key, position, token) or by nobody."""
    numbers = [(-1, 0) if row is None else ((row[0] << 32) | row[1], row[2]) for row in rows]
    lineage = np.array(numbers, np.int64).reshape(-1, 2)
    assert lineage.nbytes == len(rows) * LINEAGE_BYTES
    return links_of(memoryview(lineage.tobytes()), memoryview(np.array(IDS).tobytes()), own)


def row(key: int, position: int, token: int | None = None) -> tuple[int, int, int]:
    return key, position, IDS[position] if token is None else token


def test_rows_of_one_request_are_one_link() -> None:
    assert found([row(7, i) for i in range(12)]) == ((0, 12, 7),)


def test_a_prefix_is_put_together_from_several_requests() -> None:
    rows = [*(row(0, i) for i in range(3)), *(row(5, i) for i in range(3, 4)), row(0, 4)]
    assert found(rows) == ((0, 3, 0), (3, 4, 5), (4, 5, 0))


@pytest.mark.parametrize(
    "other",
    [None, row(7, 3), row(7, 5), row(7, 4, token=1), row(99, 4)],
    ids=["nobodys", "an-earlier-position", "a-later-position", "another-token", "its-own"],
)
def test_a_row_that_does_not_hold_is_left_out(other: tuple[int, int, int] | None) -> None:
    rows = [row(7, i) for i in range(8)]
    assert found([*rows[:4], other, *rows[5:]]) == ((0, 4, 7), (5, 8, 7))
    assert found([other, *rows[1:]]) == ((1, 8, 7),) or other == row(7, 3)
    assert found([other]) == ()


def test_large_keys_and_positions_do_not_run_into_each_other() -> None:
    """A key past 31 bits would be a negative number; there are 2 ** 31 of them before."""
    assert found([row(2**31 - 1, i) for i in range(2)]) == ((0, 2, 2**31 - 1),)
    assert found([((1 << 31) - 1, 1 << 31, IDS[0])]) == ()


def test_an_empty_prefix_has_no_links() -> None:
    assert found([]) == ()


@given(st.lists(st.sampled_from([None, 3, 4]), max_size=12))
def test_links_are_the_runs_of_equal_keys(keys: list[int | None]) -> None:
    links = found([None if key is None else row(key, i) for i, key in enumerate(keys)])
    assert [key for start, stop, key in links for _ in range(start, stop)] == [
        key for key in keys if key is not None
    ]
    assert all(keys[i] == key for start, stop, key in links for i in range(start, stop))
    ends = [(start, stop) for start, stop, _ in links]
    assert ends == sorted(ends)
    for (_, stop, key), (start, _, other) in pairwise(links):
        assert stop < start or key != other
