"""Rows on their way to a file, in pieces that are compressed by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hs_capture.format.codec import dtype_of
from hs_capture.ring.message import StreamSpec
from hs_capture.writer.record import Record

TASK_BYTES = 2 * 1024**2
"""Blocks go to a thread together until they are so many bytes: to wake a thread may take as long as
to compress 100 KiB."""


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one stream of one record; those of its prompt are still in the ring."""

    record: Record
    stream: StreamSpec
    start: int
    stop: int
    data: tuple[memoryview | bytes, ...]
    """Its byte planes, or all of its elements as one."""

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return sum(map(len, self.data))


def row_bytes(stream: StreamSpec) -> int:
    """Return the size of one row of `stream`."""
    return stream.width * dtype_of(stream.dtype).itemsize


def tasks(blocks: list[Block]) -> Iterator[list[Block]]:
    """`blocks` in parts of `TASK_BYTES` or more, but for the last."""
    task: list[Block] = []
    size = 0
    for block in blocks:
        task.append(block)
        size += block.size
        if size >= TASK_BYTES:
            yield task
            task, size = [], 0
    if task:
        yield task
