"""How far something is: one line, written over on a terminal, written now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

TERMINAL_SECONDS = 0.2
PLAIN_SECONDS = 10.0


class ProgressLine:
    """Writes to `stream`, by default standard error. Any thread may use it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._told = time.monotonic()
        self._lock = threading.Lock()

    def due(self) -> bool:
        """Whether it is time to tell; the next time then counts from now."""
        now = time.monotonic()
        due = now - self._told >= (TERMINAL_SECONDS if self._live else PLAIN_SECONDS)
        if due:
            self._told = now
        return due

    def tell(self, line: str, *, last: bool = False) -> None:
        """Write the line as it is now; on a terminal the `last` one stays."""
        start, end = ("\r\033[K", "\n" if last else "") if self._live else ("", "\n")
        self._write(start + line + end)

    def say(self, text: str) -> None:
        """Write a line of its own."""
        self._write(("\r\033[K" if self._live else "") + text + "\n")

    def wipe(self) -> None:
        """Make place for what is printed next."""
        if self._live:
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        with self._lock:
            self._stream.write(text)
            self._stream.flush()
