"""Follow an index while somebody appends to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hs_capture.format.index import IndexEntry


class IndexTail:
    """Each finished line of an index once, also those that come later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._lines = 0

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
                self._offset += len(line)
                self._lines += 1
                yield IndexEntry.from_json(line, f"{self.path}: line {self._lines}")
