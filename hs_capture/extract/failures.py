"""Samples that could not be captured: counted, listed in a file, and said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import orjson

FAILURES_FILE = "failures.jsonl"
SHOWN = 20
"""Failures that are said as they come; the file has all of them."""

HOPELESS = 50
"""Samples that fail one after the other until it is taken for a failure of all."""


class Failures:
    """The failures of one session, in `failures.jsonl` of the output: a JSON object a line with
    `sample`, `place` in the input, and `problem`."""

    def __init__(self, output: Path, say: Callable[[str], None]) -> None:
        self.path = output / FAILURES_FILE
        self.count = 0
        self.in_a_row = 0
        """Failed captures since the last good one; rows that are no samples do not count."""
        self._say = say
        self._lock = threading.Lock()
        self.path.unlink(missing_ok=True)

    def add(self, number: int, place: str, problem: str, *, captured: bool) -> None:
        """Tell of a failure; `captured` says whether a capture of it was tried."""
        line = orjson.dumps({"sample": number, "place": place, "problem": problem}) + b"\n"
        with self._lock:
            self.count += 1
            self.in_a_row += captured
            if self.count <= SHOWN:
                self._say(f"failed: {place}: {problem}")
            elif self.count == SHOWN + 1:
                self._say(f"failed: more; {self.path} has all of them")
            with self.path.open("ab") as file:
                file.write(line)

    def good(self) -> None:
        """A sample was captured."""
        self.in_a_row = 0
