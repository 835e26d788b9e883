"""A new file that is created once there is enough to write.

Thousands of short prompts in one batch then need neither thousands of open files nor many small
writes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
HELD_BYTES = 256 * 1024
"""So many bytes stay in memory until the file is longer, or closed."""


class LateFile:
    """Bytes on their way to a file that must not exist. Threads may share it.

    After an `OSError` every further call raises the same one; all that is left to do then is
    `remove`.
    """

    def __init__(self, path: str, mode: int) -> None:
        """The file gets permission bits `mode`, whatever the umask is."""
        self.path = path
        self._mode = mode
        self._file = -1
        # The beginning of the file, until there is a file.
        self._held: bytearray | None = bytearray()
        self._lock = threading.Lock()
        self._error: OSError | None = None

    def write(self, parts: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """Write `parts` back to back at `offset`. In the end there must be no hole in the file."""
        end = offset + sum(map(len, parts))
        with self._lock:
            self._check()
            if self._held is not None:
                if end <= HELD_BYTES:
                    self._hold(self._held, parts, offset)
                    return
                self._create(self._held)
        self._write(parts, offset)

    def move(self, source: int, target: int, length: int) -> None:
        """Move `length` bytes at `source` down to `target`; no `write` may run meanwhile."""
        self._check()
        if self._held is not None:
            self._held[target : target + length] = self._held[source : source + length]
        elif source != target:
            self._write((os.pread(self._file, length, source),), target)

    def cut(self, length: int) -> None:
        """Drop what is behind the first `length` bytes; no `write` may run meanwhile."""
        self._check()
        if self._held is not None:
            del self._held[length:]
        else:
            os.ftruncate(self._file, length)

    def close(self) -> None:
        """Write what was held, and close the file. To be called when no `write` runs any more."""
        self._check()
        if self._held is not None:
            self._create(self._held)
        self._close()

    def remove(self) -> None:
        """Close and remove the unfinished file. Does nothing once the file is closed."""
        self._held = None
        if self._file >= 0:
            self._close()
            with suppress(FileNotFoundError):
                os.unlink(self.path)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _hold(
        self, held: bytearray, parts: Sequence[bytes | bytearray | memoryview], offset: int
    ) -> None:
        # Threads may come in any order.
        if offset > len(held):
            held.extend(bytes(offset - len(held)))
        for part in parts:
            held[offset : offset + len(part)] = part
            offset += len(part)

    def _create(self, held: bytearray) -> None:
        """Create the file, and its folder should it be gone, with what was held."""
        self._held = None
        try:
            try:
                self._file = os.open(self.path, _FLAGS, self._mode)
            except FileNotFoundError:
                # Whoever cleans up unused folders may have taken it.
                # Not its parents: a run that somebody removed must not come back.
                with suppress(FileExistsError):
                    os.mkdir(os.path.dirname(self.path), 0o700)
                self._file = os.open(self.path, _FLAGS, self._mode)
            os.fchmod(self._file, self._mode)
        except OSError as error:
            self._error = error
            raise
        self._write((held,), 0)

    def _write(self, parts: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        # A short write is how a nearly full file system begins to say so; the next one says it.
        left = [memoryview(part) for part in parts if len(part)]
        try:
            while left:
                written = os.pwritev(self._file, left, offset)
                offset += written
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if written:
                    left[0] = left[0][written:]
        except OSError as error:
            self._error = error
            raise

    def _close(self) -> None:
        file, self._file = self._file, -1
        os.close(file)
