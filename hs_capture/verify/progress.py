"""How far verify is, where that takes long: with all captures, or with a large head."""

from __future__ import annotations

from hs_capture.progress import ProgressLine


class Progress:
    """Call it with the number of captures that were `done`, as often as you like."""

    def __init__(self, done: str) -> None:
        """`done` says what was done with them."""
        self._done = done
        self._line = ProgressLine()

    def __call__(self, captures: int) -> None:
        """Say how far it is, if it is time to."""
        if self._line.due():
            self._line.tell(f"hs-capture verify: {captures:,} captures {self._done}")

    def end(self) -> None:
        """Make place for the report."""
        self._line.wipe()
