"""How far an extraction is: one line written over on a terminal, one now and then elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from hs_capture.extract.ledger import Totals
from hs_capture.extract.sizes import duration, human

_TERMINAL_SECONDS = 0.5
_PLAIN_SECONDS = 10.0


class Progress:
    """Writes to `stream`, by default standard error. `say` may be called from any thread."""

    def __init__(self, samples: int, dump_dirs: list[Path], stream: TextIO | None = None) -> None:
        """`samples` are to be in the store in the end; the free space of `dump_dirs` is shown."""
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._samples = samples
        self._dump_dirs = dump_dirs
        self._before: Totals | None = None
        self._started = time.monotonic()
        self._told = self._started
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write a line of its own."""
        with self._lock:
            self._write(("\r\033[K" if self._live else "") + text + "\n")

    def tell(self, totals: Totals, in_flight: int, failed: int) -> None:
        """Say how far it is, if it is time to."""
        now = time.monotonic()
        if self._before is None:
            self._before = Totals(**vars(totals))
        if now - self._told < (_TERMINAL_SECONDS if self._live else _PLAIN_SECONDS):
            return
        self._told = now
        line = self._line(totals, self._before, in_flight, failed, now - self._started)
        with self._lock:
            self._write(f"\r\033[K{line}" if self._live else f"{line}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _line(
        self, totals: Totals, before: Totals, in_flight: int, failed: int, seconds: float
    ) -> str:
        done = totals.captured - before.captured
        tokens = (totals.tokens - before.tokens) / seconds
        parts = [
            f"{totals.captured:,} of {self._samples:,} samples",
            f"{tokens:,.0f} tokens/s",
            f"{human(totals.stored_bytes)} written",
        ]
        if totals.stored_bytes:
            parts.append(f"ratio {totals.raw_bytes / totals.stored_bytes:.2f}")
        parts += [f"{in_flight} in flight", f"{failed} failed"]
        for directory in self._dump_dirs:
            with suppress(OSError):
                space = os.statvfs(directory)
                parts.append(f"{human(space.f_bavail * space.f_frsize)} free in {directory}")
        if done:
            left = (self._samples - failed - totals.captured) * seconds / done
            parts.append(f"{duration(max(0.0, left))} left")
        return ", ".join(parts)
