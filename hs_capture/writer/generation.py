"""Rows of generated tokens, which come one a pass, on their way to blocks of several.

A row is taken out of the ring when it comes, for the ring gives room back in order, and a request
may take long to bring the next one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hs_capture.format.codec import dtype_of
from hs_capture.format.metadata import INPUT_IDS
from hs_capture.ring.message import StreamSpec

BLOCK_BYTES = 128 * 1024
"""Rows become blocks when those of one stream are so many bytes..."""
BLOCK_ROWS = 16
"""... or when they are so many, whichever comes last."""
NOT_SEEN = -(2**63)
"""Stands for a token id that did not come. A sampler that fails may give -1."""


@dataclass(frozen=True)
class _Place:
    """Where a stream is: in the payload of an entry of `n` rows from byte `n * before` on, and in
    a row by itself from byte `offset` on; one part of `width` bytes a row in each of `planes`."""

    stream: StreamSpec
    planes: int
    width: int
    before: int
    offset: int


class RowLayout:
    """How rows lie in the payload of an entry, and how one is kept by itself."""

    def __init__(self, streams: Sequence[StreamSpec], splits_planes: bool) -> None:
        """The first of `streams` is the token ids that the rows belong to."""
        self._places: list[_Place] = []
        before = 0
        for stream in streams:
            itemsize = dtype_of(stream.dtype).itemsize
            planes = itemsize if splits_planes else 1
            size = stream.width * itemsize
            self._places.append(_Place(stream, planes, size // planes, before, before))
            before += size
        widest = max(place.planes * place.width for place in self._places)
        self.block_rows = max(BLOCK_ROWS, BLOCK_BYTES // widest)
        """How many rows become a block."""
        self.row_bytes = before
        """Bytes of one row, its token id included."""

    def row(self, payload: memoryview, rows: int, row: int) -> bytes:
        """Return row `row` of a payload with `rows` of them."""
        return b"".join(
            payload[start : start + place.width]
            for place in self._places
            for start in range(
                rows * place.before + row * place.width,
                rows * (place.before + place.planes * place.width),
                rows * place.width,
            )
        )

    def token_of(self, row: bytes) -> int:
        """Return the token id of a row."""
        size = self._places[0].planes * self._places[0].width
        return int.from_bytes(row[:size], "little", signed=True)

    def streams_of(self, rows: Sequence[bytes]) -> Iterator[tuple[StreamSpec, tuple[bytes, ...]]]:
        """Yield each stream of states with the planes of these rows."""
        for place in self._places:
            if place.stream.name != INPUT_IDS:
                starts = range(place.offset, place.offset + place.planes * place.width, place.width)
                yield (
                    place.stream,
                    tuple(b"".join([row[a : a + place.width] for row in rows]) for a in starts),
                )


@dataclass
class Generation:
    """What came of the tokens that one request generated, behind its prompt of `prompt` tokens."""

    prompt: int
    _ids: array[int] = field(default_factory=lambda: array("q"))
    _rows: dict[int, bytes] = field(default_factory=dict)
    """The rows that wait, by position."""

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        return len(self._rows)

    def add(self, position: int, token: int, row: bytes) -> None:
        """Keep the row of `token`, which the request has at `position`."""
        number = position - self.prompt
        while len(self._ids) <= number:
            self._ids.append(NOT_SEEN)
        self._ids[number] = token
        self._rows[position] = row

    def take(self, below: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
        """Take the rows that wait, neighbours together, as (position of the first, rows).

        By default all but the last that came: while a request runs nobody knows whether its last
        row is of a token. With `below` all are taken, and those from there on are dropped.
        """
        stop = self.prompt + len(self._ids) - 1 if below is None else below
        rows: list[bytes] = []
        first = 0
        for position in sorted(position for position in self._rows if position < stop):
            if rows and position != first + len(rows):
                yield first, rows
                rows = []
            if not rows:
                first = position
            rows.append(self._rows.pop(position))
        if rows:
            yield first, rows
        if below is not None:
            self._rows.clear()

    def known(self) -> array[int]:
        """Return the generated tokens that are sure without word of the server.

        Each that another one follows: the last row may be of no token.
        """
        count = self._ids.index(NOT_SEEN) if NOT_SEEN in self._ids else len(self._ids) - 1
        return self._ids[: max(0, count)]

    def agreeing(self, generated: Sequence[int]) -> int:
        """Return how many of the `generated` tokens there are before one that ran as another."""
        for number, (seen, token) in enumerate(zip(self._ids, generated, strict=False)):
            if seen not in (token, NOT_SEEN):
                return number
        return len(generated)
