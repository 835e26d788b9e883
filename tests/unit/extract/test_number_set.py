"""Numbers are in the set when they were added, wherever they are, and take a bit each."""

from __future__ import annotations

import random
import tracemalloc

from hs_capture.extract.number_set import NumberSet


def test_what_was_added_is_in_it_and_nothing_else() -> None:
    rng = random.Random(1)
    edges = [0, 7, 8, 32767, 32768, 65535, -1, -32768, 10**18]
    added = {*edges, *(rng.randrange(100_000) for _ in range(5000))}
    numbers = NumberSet()
    numbers.update(added)
    asked = {*range(100_000), *(edge + step for edge in edges for step in (-1, 0, 1))}
    assert {number for number in asked if number in numbers} == added & asked
    assert added <= asked


def test_a_new_one_is_empty() -> None:
    assert 0 not in NumberSet()


def test_a_hundred_thousand_numbers_take_a_bit_each() -> None:
    """A set of Python's takes some 60 bytes for each."""
    numbers = NumberSet()
    tracemalloc.start()
    try:
        numbers.update(range(100_000))
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size < 100_000 / 8 + 10_000
