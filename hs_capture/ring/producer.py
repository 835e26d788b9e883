"""The server's end of the ring: find room, fill it, publish."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass

from hs_capture.errors import ConfigError
from hs_capture.ring.fence import Fence
from hs_capture.ring.layout import MAGIC, PAGE, PLACES, EntryShape, EntryWord, Region, Word, align


@dataclass(frozen=True)
class Slot:
    """Room for one entry: its position in the stream of bytes and its payload."""

    position: int
    shape: EntryShape
    payload: memoryview


class Producer:
    """Fills the ring. One thread of one process uses it; only counting is for all of them."""

    def __init__(self, capacity: int) -> None:
        """Create a ring of about `capacity` bytes, with its memory taken at once.

        Raises:
            ConfigError: the machine does not have the memory. Taking it now turns a crash in the
                middle of serving into a refusal at start.
        """
        capacity = -(-capacity // PAGE) * PAGE
        self.descriptor = os.memfd_create("hs-capture-ring", os.MFD_CLOEXEC)
        self.size = PAGE + capacity
        try:
            os.posix_fallocate(self.descriptor, 0, self.size)
        except OSError as error:
            os.close(self.descriptor)
            raise ConfigError(
                f"SGLANG_HS_BUFFER: no memory for a ring of {capacity} bytes "
                f"({errno.errorcode.get(error.errno or 0, 'unknown error')}); "
                "set a smaller SGLANG_HS_BUFFER or give the container more shared memory"
            ) from error
        self.region = Region(self.descriptor, self.size)
        self.region.header[Word.MAGIC] = MAGIC
        self.region.header[Word.CAPACITY] = capacity
        self._head = 0
        self._fence = Fence()
        self._counting = threading.Lock()

    @property
    def largest_entry(self) -> int:
        """Largest entry in bytes. Half the ring, so that padding before it always fits too."""
        return self.region.capacity // 2

    @property
    def free(self) -> int:
        """Bytes of the ring that are not in use now."""
        return self.region.capacity - (self._head - self.released)

    @property
    def released(self) -> int:
        """Position up to which the consumer needs nothing any more."""
        return self.region.header[Word.TAIL]

    def fits(self, message: int, payload: int) -> bool:
        """Whether an entry with `message` and `payload` bytes is not too large for the ring."""
        return EntryShape(message, payload).length <= self.largest_entry

    def reserve(self, message: int, payload: int) -> Slot | None:
        """Find room for an entry with `message` and `payload` bytes; None when the ring is full.

        Raises:
            ValueError: the entry is larger than `largest_entry`.
        """
        shape = EntryShape(message, payload)
        if not self.fits(message, payload):
            raise ValueError(f"an entry of {shape.length} bytes is over {self.largest_entry}")
        capacity = self.region.capacity
        to_end = capacity - self._head % capacity
        padding = to_end if to_end < shape.length else 0
        if padding + shape.length > self.free:
            return None
        if padding:
            self._pad(padding)
        offset = self._head % capacity
        self.region.words(offset)[EntryWord.READY] = 0
        start = offset + shape.payload_offset
        return Slot(self._head, shape, self.region.data[start : start + payload])

    def publish(self, slot: Slot, message: bytes, *, ready: bool = True) -> None:
        """Make the entry visible to the consumer.

        With `ready` false the payload is still being copied, and whoever copies it sets the
        entry's ready word, perhaps before this call.
        """
        offset = slot.position % self.region.capacity
        words = self.region.words(offset)
        words[EntryWord.LENGTH] = slot.shape.length
        if ready:
            words[EntryWord.READY] = 1
        words[EntryWord.MESSAGE] = len(message)
        words[EntryWord.PAYLOAD] = slot.shape.payload
        start = offset + 8 * len(words)
        self.region.data[start : start + len(message)] = message
        self._advance(slot.shape.length)

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to one of ``format.counters.SERVER_COUNTERS``. Any thread may call it."""
        with self._counting:
            self.region.header[PLACES[name]] += amount

    def _pad(self, length: int) -> None:
        words = self.region.words(self._head % self.region.capacity)
        words[EntryWord.LENGTH] = align(length)
        words[EntryWord.READY] = 1
        words[EntryWord.MESSAGE] = 0
        words[EntryWord.PAYLOAD] = 0
        self._advance(length)

    def _advance(self, length: int) -> None:
        self._head += length
        # Whoever sees the new head sees the entry's bytes.
        self._fence.order()
        self.region.header[Word.HEAD] = self._head
