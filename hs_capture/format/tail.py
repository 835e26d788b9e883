"""Follow an index while somebody appends to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hs_capture.format.index import IndexEntry, parse_line


class IndexTail:
    """Each finished line of an index once, also those that come later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._lines = 0
        self.line_at = 0
        """Where in the file the line of the last entry begins."""

    def read(self) -> Iterator[IndexEntry]:
        """The entries that were added since they were last read here.

        An index that is not there yet has none. A finished line that is broken raises
        `FormatError` with its number, and is passed over by the next read.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.line_at = self._offset
                self._offset += len(line)
                self._lines += 1
                yield parse_line(line, f"{self.path}: line {self._lines}")

    def entry_at(self, offset: int) -> IndexEntry:
        """The entry in the line that begins at `offset`; it was read before."""
        with self.path.open("rb") as file:
            file.seek(offset)
            return parse_line(file.readline(), f"{self.path}: byte {offset}")
