"""Rows of a capture that are in other captures' files.

A capture whose prefix came from the server's cache has links: (start, stop, key) says that its rows
[start, stop) are those of the request `key` of the same run, at the same positions. What a capture
says of itself (`missing`, `complete`) never counts them, so that it stays right whatever happens
to the other file. Readers resolve links against the captures that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hs_capture.intervals import Interval, subtract, union

if TYPE_CHECKING:
    from typing_extensions import Self

    from hs_capture.format.index import IndexEntry

Link: TypeAlias = tuple[int, int, int]
"""Rows [start, stop) are those of the request with this key."""

SOURCE_GONE = "source_gone"
"""Why a capture is incomplete that has links to rows which are not there."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows [start, stop) of a capture are in `file`, at the same positions, the capture of `rid`.

    `key` is the number by which the server knew the request of that capture.
    """

    start: int
    stop: int
    file: str
    rid: str
    key: int


class Sources:
    """The captures of one run that others of it have links to."""

    def __init__(self, find: Callable[[int], IndexEntry | None]) -> None:
        """`find` gives what a capture that is there says of itself, by its key."""
        self._find = find

    @classmethod
    def among(cls, entries: Sequence[IndexEntry]) -> Self:
        """The captures among `entries`, which are those of a run whose files are there."""
        wanted = {key for entry in entries for _, _, key in entry.links}
        by_key = {e.key: e for e in entries if e.key in wanted} if wanted else {}
        return cls(by_key.get)

    def of(self, entry: IndexEntry) -> tuple[Source, ...]:
        """The rows of `entry` that others have, ascending; those that nobody has are left out."""
        return tuple(self._found(entry)) if entry.links else ()

    def resolved(self, entry: IndexEntry) -> IndexEntry:
        """`entry` with the rows that others have counted as its own."""
        return with_rows_of(entry, self.of(entry)) if entry.links else entry

    def _found(self, entry: IndexEntry) -> Iterator[Source]:
        end = 0
        for start, stop, key in entry.links:
            source = self._find(key)
            if source is None or start < end or not _alike(entry, source):
                continue
            end = stop
            last = source.num_tokens + source.rows_behind
            for a, b in _had((start, min(stop, last)), source):
                yield Source(a, b, str(source.file), source.rid, key)


def with_rows_of(entry: IndexEntry, sources: Iterable[Source]) -> IndexEntry:
    """What a capture says of itself, with the rows of its `sources` counted as its own.

    The same one without links. `rows` and the sizes stay those of its own file.
    """
    if not entry.links:
        return entry
    found = [(source.start, source.stop) for source in sources]
    if len(found) > 1:
        found = union(found)
    missing: tuple[Interval, ...] = ()
    if tuple(found) != entry.missing:
        missing = tuple(left for gap in entry.missing for left in subtract(gap, found))
    return entry.lacking(missing, _reason(entry, missing))


def all_linked(entry: IndexEntry) -> bool:
    """Whether each row that a capture lacks has a link; the other file may be there or not."""
    linked = [(start, stop) for start, stop, _ in entry.links]
    return not any(subtract(gap, linked) for gap in entry.missing)


def _had(rows: Interval, source: IndexEntry) -> Iterable[Interval]:
    """The part of `rows` that a capture has itself; nearly always all of them."""
    if not source.missing and rows[0] < rows[1]:
        return (rows,)
    return subtract(rows, source.missing)


def _alike(entry: IndexEntry, source: IndexEntry) -> bool:
    """Whether both were computed by the same weights, so that one may have rows of the other."""
    return (
        source.key != entry.key
        and source.weights_version == entry.weights_version
        and source.lora == entry.lora
    )


def _reason(entry: IndexEntry, missing: tuple[Interval, ...]) -> str | None:
    if not missing:
        return None
    linked = any(a < stop and start < b for a, b in missing for start, stop, _ in entry.links)
    # A loss of its own is the reason all the same.
    if linked and entry.incomplete_reason == "prefix_cache":
        return SOURCE_GONE
    return entry.incomplete_reason
