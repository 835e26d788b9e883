"""The answers of open requests: rows of one token a pass in, blocks of several out."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from hs_capture.format.codec import encode
from hs_capture.intervals import union
from hs_capture.ring.consumer import Entry
from hs_capture.ring.message import StreamSpec
from hs_capture.writer.block import Block
from hs_capture.writer.config import TOKENS
from hs_capture.writer.generation import RowLayout
from hs_capture.writer.record import Record

RETRACTED = "retracted"
"""Why rows are missing that were computed of other tokens than the request has in the end."""
WAITING_BYTES = 256 * 1024**2
"""So many bytes of rows of generated tokens may wait to become blocks of a good size."""


class Answers:
    """What one writer has of the tokens that its open requests generate. Used by one thread."""

    def __init__(self, streams: Sequence[StreamSpec], splits_planes: bool) -> None:
        """The first of `streams` is the token ids that the rows belong to."""
        self._layout = RowLayout(streams, splits_planes)
        self._waiting = 0

    @property
    def too_many(self) -> bool:
        """Whether so many rows wait that all should become blocks now."""
        return self._waiting * self._layout.row_bytes > WAITING_BYTES

    def take(
        self, entry: Entry, record: Record, start: int, stop: int, row: int
    ) -> Iterator[Block]:
        """Keep the positions [start, stop), which lie from row `row` of the entry on.

        Yields blocks of them once there are enough.
        """
        assert record.generation is not None
        for position in range(start, stop):
            taken = self._layout.row(entry.payload, entry.message.rows, row + position - start)
            record.generation.add(position, self._layout.token_of(taken), taken)
        self._waiting += stop - start
        if record.generation.waiting > self._layout.block_rows:
            yield from self.blocks(record)

    def blocks(self, record: Record, below: int | None = None) -> Iterator[Block]:
        """Make blocks of the rows of `record` that wait; see `Generation.take`."""
        assert record.generation is not None
        self._waiting -= record.generation.waiting
        for start, rows in record.generation.take(below):
            for stream, data in self._layout.streams_of(rows):
                yield Block(record, stream, start, start + len(rows), data)
        self._waiting += record.generation.waiting

    def end(self, record: Record, generated: array[int] | None) -> Iterator[Block]:
        """Fix which tokens `record` has, and make blocks of their rows that wait.

        `generated` is what the server says that was generated: the last of it ends the answer.
        Without its word there are those that are sure all the same.
        """
        seen = record.generation
        assert seen is not None
        answer = seen.known() if generated is None else generated[:-1]
        agreeing = len(answer) if generated is None else seen.agreeing(generated)
        record.end(answer, generated[-1:] if generated and agreeing > len(answer) else ())
        record.certain = min(record.request.num_tokens + agreeing, record.file_rows)
        yield from self.blocks(record, below=record.certain)


def complete(record: Record) -> None:
    """Add the generated tokens, and take back what ran as others. All blocks are stored."""
    if record.certain is None:
        return
    prompt, total = record.request.num_tokens, record.num_tokens
    gone = record.container.cut(record.certain)
    if any(stop > total for _, stop in gone):
        record.behind = ()
    if record.certain < total:
        gone = union([*gone, (record.certain, total)])
    record.take_back(gone, RETRACTED)
    if record.file_rows > prompt:
        ids = array("q", [*record.generated, *record.behind])
        encoded = encode(ids.tobytes(), TOKENS.dtype)
        record.container.add(TOKENS.name, prompt, record.file_rows, encoded)
