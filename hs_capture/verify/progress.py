"""How far verify is, where that takes long: with all captures, or with a large head."""

from __future__ import annotations

from hs_capture.progress import ProgressLine


class Progress:
    """Tells how many captures were done, if it is time to."""

    def __init__(self, done: str) -> None:
        """`done` says what was done with them."""
        self._done = done
        self._captures = 0
        self._line = ProgressLine()

    def __call__(self, captures: int) -> None:
        """So many are done by now."""
        self._captures = captures
        if self._line.due():
            self._line.tell(f"hs-capture verify: {captures:,} captures {self._done}")

    def add(self) -> None:
        """One more is done."""
        self(self._captures + 1)

    def end(self) -> None:
        """Make place for the report."""
        self._line.wipe()
