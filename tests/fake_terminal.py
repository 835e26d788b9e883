"""What stands in for a terminal and for the module `time`, where progress is told."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Stands in for the module `time`; `now` is set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now
