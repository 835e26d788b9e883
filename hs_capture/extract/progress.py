"""How far an extraction is."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from hs_capture.counted import count_text
from hs_capture.extract.ledger import Totals
from hs_capture.extract.sizes import duration, human
from hs_capture.progress import ProgressLine


class Progress:
    """Writes to `stream`, by default standard error. `say` may be called from any thread."""

    def __init__(self, samples: int, dump_dirs: list[Path], stream: TextIO | None = None) -> None:
        """`samples` are to be in the store in the end; the free space of `dump_dirs` is shown."""
        self._line = ProgressLine(stream)
        self.say = self._line.say
        self._samples = samples
        self._dump_dirs = dump_dirs
        self._before: Totals | None = None
        self._started = time.monotonic()

    def tell(self, totals: Totals, in_flight: int, failed: int) -> None:
        """Say how far it is, if it is time to."""
        if self._before is None:
            self._before = Totals(**vars(totals))
        if self._line.due():
            seconds = time.monotonic() - self._started
            self._line.tell(self._text(totals, self._before, in_flight, failed, seconds))

    def _text(
        self, totals: Totals, before: Totals, in_flight: int, failed: int, seconds: float
    ) -> str:
        done = totals.captured - before.captured
        tokens = (totals.tokens - before.tokens) / seconds
        parts = [
            f"{totals.captured:,} of {count_text(self._samples, 'sample')}",
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
