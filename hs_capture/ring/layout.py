"""What the bytes of the ring mean.

The ring is one anonymous memory file (``memfd_create``), mapped by the server and by the writer.

    page 0          header: eight-byte little-endian words, see ``Word`` and ``PLACES``
    page 1 ...      data: `capacity` bytes, used as a circle

``HEAD`` and ``TAIL`` count bytes ever published and ever released; both only grow, and an entry
at position p lies at data offset p mod capacity. Only the producer writes ``HEAD`` and the
server's counters, only the consumer writes ``TAIL`` and the writer's: each sees how the other does,
and a writer goes on counting where one that died left off. An entry is contiguous and starts on 64
bytes:

    word 0          length of the whole entry, a multiple of 64
    word 1          1 when the payload is in place (copies from a device finish after publication)
    word 2          length of the message; 0 marks padding up to the end of the circle
    word 3          length of the payload
    words 4 to 7    unused
    then            the message (JSON, see ``message``), then at the next multiple of 64 the payload
"""

from __future__ import annotations

import enum
import mmap
from dataclasses import dataclass

from hs_capture.format.counters import SERVER_COUNTERS, WRITER_COUNTERS

PAGE = 4096
ALIGNMENT = 64
ENTRY_HEADER = 64
MAGIC = int.from_bytes(b"HSRING\x00\x01", "little")


class Word(enum.IntEnum):
    """Index of each eight-byte word in the header page."""

    MAGIC = 0
    CAPACITY = 1
    HEAD = 2
    TAIL = 3
    SERVER_COUNTERS = 8
    WRITER_COUNTERS = 64


PLACES = {
    name: first + i
    for first, names in (
        (Word.SERVER_COUNTERS, SERVER_COUNTERS),
        (Word.WRITER_COUNTERS, (*WRITER_COUNTERS, "open_records")),
    )
    for i, name in enumerate(names)
}
"""The header word of each counter."""


class EntryWord(enum.IntEnum):
    """Index of each eight-byte word in an entry's header."""

    LENGTH = 0
    READY = 1
    MESSAGE = 2
    PAYLOAD = 3


def align(size: int) -> int:
    """Round `size` bytes up to the ring's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class EntryShape:
    """Where the parts of one entry lie, in bytes from its start."""

    message: int
    payload: int

    @property
    def payload_offset(self) -> int:
        """Where the payload starts."""
        return align(ENTRY_HEADER + self.message)

    @property
    def length(self) -> int:
        """Size of the whole entry."""
        return self.payload_offset + align(self.payload)


class Region:
    """The mapped ring: header words and data bytes."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map `size` bytes of the memory file behind `descriptor`."""
        self.map = mmap.mmap(descriptor, size)
        view = memoryview(self.map)
        self.header = view[:PAGE].cast("Q")
        self.data = view[PAGE:]
        self.capacity = len(self.data)

    def words(self, offset: int) -> memoryview:
        """Return the header words of the entry at data offset `offset`."""
        return self.data[offset : offset + ENTRY_HEADER].cast("Q")

    def counters(self) -> dict[str, int]:
        """Return what server and writer have counted, by ``format.counters.COUNTERS``."""
        found = {name: self.header[place] for name, place in PLACES.items()}
        # The tail first: it is never beyond the head that is read after it.
        tail = self.header[Word.TAIL]
        return {**found, "queued_bytes": self.header[Word.HEAD] - tail}
