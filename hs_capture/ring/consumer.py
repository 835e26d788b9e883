"""The writer's end of the ring: take entries in order, release them when their bytes are used."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hs_capture.errors import FormatError
from hs_capture.ring.fence import Fence
from hs_capture.ring.layout import (
    ENTRY_HEADER,
    MAGIC,
    PLACES,
    EntryShape,
    EntryWord,
    Region,
    Word,
)
from hs_capture.ring.message import Message, decode


@dataclass
class Entry:
    """One entry: its message, its payload, and how many users still need the payload."""

    message: Message
    payload: memoryview
    end: int
    users: int = field(default=1)


class Consumer:
    """Empties the ring. One thread takes entries; any thread may release them."""

    def __init__(self, descriptor: int) -> None:
        """Map the ring behind `descriptor`.

        Raises:
            FormatError: `descriptor` is not a ring of this version.
        """
        self.region = Region(descriptor, os.fstat(descriptor).st_size)
        if self.region.header[Word.MAGIC] != MAGIC:
            raise FormatError(f"descriptor {descriptor} is not a ring of this hs-capture version")
        self._next = self.region.header[Word.TAIL]
        self._held: deque[Entry] = deque()
        self._lock = threading.Lock()
        self._fence = Fence()
        self._release_fence = Fence()
        self.waiting = False
        """Whether the next entry is published, but its payload is not in place yet."""

    def entries(self, *, in_place: bool = True) -> Iterator[Entry]:
        """Take every entry that is published and in place. `release` each of them once.

        Ends before an entry whose payload is still being copied; `waiting` is then true. With
        `in_place` false such entries are taken too: their messages are right, their payloads not.
        """
        self.waiting = False
        while self._next < self.region.header[Word.HEAD]:
            # The entry is read after the head, the counterpart of what the producer does.
            self._fence.order()
            offset = self._next % self.region.capacity
            words = self.region.words(offset)
            length, message_length = words[EntryWord.LENGTH], words[EntryWord.MESSAGE]
            if in_place and not words[EntryWord.READY]:
                self.waiting = True
                return
            # And what a device copied is read after the word that says so.
            self._fence.order()
            self._next += length
            if message_length == 0:
                self._hold(Entry(Message(), memoryview(b""), self._next, users=0))
                continue
            shape = EntryShape(message_length, words[EntryWord.PAYLOAD])
            start = offset + ENTRY_HEADER
            message = decode(self.region.data[start : start + message_length])
            start = offset + shape.payload_offset
            entry = Entry(message, self.region.data[start : start + shape.payload], self._next)
            self._hold(entry)
            yield entry

    def keep(self, entry: Entry) -> None:
        """Add one user to `entry`: it then takes one more `release`."""
        with self._lock:
            entry.users += 1

    def release(self, entry: Entry) -> None:
        """Say that one user is done. Space is given back in order, oldest entry first."""
        with self._lock:
            entry.users -= 1
            self._give_back()

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to one of ``format.counters.WRITER_COUNTERS``. Threads may share it."""
        with self._lock:
            self.region.header[PLACES[name]] += amount

    def tell(self, name: str, value: int) -> None:
        """Say what one of them, or ``open_records``, is now."""
        self.region.header[PLACES[name]] = value

    @property
    def drained(self) -> bool:
        """Whether every published entry was taken and released."""
        with self._lock:
            return not self._held and self._next == self.region.header[Word.HEAD]

    def _hold(self, entry: Entry) -> None:
        with self._lock:
            self._held.append(entry)
            self._give_back()

    def _give_back(self) -> None:
        while self._held and self._held[0].users == 0:
            # Whoever sees the new tail may write where the entry was: all of it was read by now.
            self._release_fence.order()
            self.region.header[Word.TAIL] = self._held.popleft().end
