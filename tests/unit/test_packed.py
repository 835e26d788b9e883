"""Packed sequences give back what was packed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hs_capture.packed import PackedRuns, PackedStrings


@given(st.lists(st.text(st.characters())))
def test_strings_come_back(strings: list[str]) -> None:
    packed = PackedStrings(strings)
    assert [packed[i] for i in range(len(packed))] == strings


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)))))
def test_runs_come_back(masks: list[list[tuple[int, int]]]) -> None:
    packed = PackedRuns(tuple(runs) for runs in masks)
    assert [list(packed[i]) for i in range(len(packed))] == masks
