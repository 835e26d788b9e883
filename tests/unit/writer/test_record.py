"""What a record knows: its rows, what is missing, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from hs_capture.format.container import ContainerWriter
from hs_capture.intervals import Interval
from hs_capture.ring.message import Lost, Opened
from hs_capture.writer.record import Record


@pytest.mark.parametrize(
    ("taken", "losses", "end", "reason"),
    [
        ([(0, 10)], [], None, None),
        ([(0, 10)], [(2, 4, "dropped")], "aborted", None),
        ([(4, 10)], [], None, "prefix_cache"),
        ([(3, 10)], [], None, "prefix_cache"),
        ([(5, 10)], [], None, "unknown"),
        ([(0, 3), (4, 10)], [], None, "prefix_cache"),
        ([(0, 6), (7, 10)], [], None, "unknown"),
        ([(0, 6)], [], "aborted", "aborted"),
        ([(0, 6)], [(6, 8, "dropped")], "aborted", "dropped"),
        ([(0, 6)], [(0, 6, "writer_died")], "aborted", "aborted"),
        ([(0, 2)], [(0, 2, "writer_died"), (5, 9, "hook_error"), (2, 5, "dropped")], None,
         "hook_error"),
        ([], [], "server_stopped", "server_stopped"),
    ],
)  # fmt: skip
def test_the_reason_is_the_first_that_explains_a_missing_row(
    tmp_path: Path,
    taken: list[Interval],
    losses: list[tuple[int, int, str]],
    end: str | None,
    reason: str | None,
) -> None:
    record = Record(Opened(0, "r", 10, cached_tokens=4), ContainerWriter(tmp_path / "part"))
    for start, stop in taken:
        record.take(start, stop)
    record.losses.extend(Lost(0, *loss) for loss in losses)
    record.end_reason = end
    assert record.incomplete_reason == reason
    assert (record.missing == []) is (reason is None)
    record.container.abort()


def test_rows_are_taken_once_and_never_beyond_the_prompt(tmp_path: Path) -> None:
    record = Record(Opened(0, "r", 10, 0), ContainerWriter(tmp_path / "part"))
    assert record.take(2, 4) == [(2, 4)]
    assert record.take(0, 6) == [(0, 2), (4, 6)]
    assert record.take(0, 6) == []
    assert record.take(5, 99) == [(6, 10)]
    assert record.take(10, 12) == []
    assert (record.rows, record.missing, record.covered) == (10, [], [(0, 10)])
    record.container.abort()


def test_only_rows_that_are_missing_are_linked(tmp_path: Path) -> None:
    """Should rows come that are linked to another's, they are the request's own."""
    record = Record(
        Opened(9, "r", 10, cached_tokens=6),
        ContainerWriter(tmp_path / "part"),
        origins=((0, 4, 1), (4, 6, 2)),
    )
    record.take(6, 10)
    assert record.links == ((0, 4, 1), (4, 6, 2))
    record.take(2, 5)
    assert record.links == ((0, 2, 1), (5, 6, 2))
    record.take(0, 10)
    assert (record.links, record.missing) == ((), [])
