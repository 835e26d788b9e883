"""Whose rows a forward pass computes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capture_server import prompt
from hs_capture.capture.batch import Rows, batch_of

extent = st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))


@given(st.lists(extent, max_size=6))
def test_every_prompt_row_is_named_once_at_its_place(
    extents: list[tuple[bool, int, int, int]],
) -> None:
    """Against a plain walk over the rows of the batch."""
    requests = [prompt(key, length) for key, (_, _, _, length) in enumerate(extents)]
    batch = batch_of(
        (request if wanted else None, prefix, extend)
        for request, (wanted, prefix, extend, _) in zip(requests, extents, strict=True)
    )
    walked = []
    row = 0
    for key, (wanted, prefix, extend, length) in enumerate(extents):
        for position in range(prefix, prefix + extend):
            if wanted and position < length:
                walked.append((key, position, row))
            row += 1
    assert batch.total_rows == row
    assert walked == [
        (rows.request.key, position, rows.row + position - rows.start)
        for rows in batch.rows
        for position in range(rows.start, rows.stop)
    ]


def test_a_divided_batch_keeps_its_rows_and_their_places() -> None:
    batch = batch_of((prompt(key, 4), 0, 4) for key in range(3))
    others, chosen = batch.divided(lambda rows: rows.request.key == 1)
    assert [(rows.request.key, rows.row) for rows in others.rows] == [(0, 0), (2, 8)]
    assert [(rows.request.key, rows.row) for rows in chosen.rows] == [(1, 4)]
    assert others.total_rows == chosen.total_rows == 12


def test_the_last_rows_are_those_that_reach_the_prompts_end() -> None:
    request = prompt(0, 5)
    assert Rows(request, 3, 5, 0).last
    assert not Rows(request, 0, 4, 0).last
