"""How far an export is: one line written over on a terminal, one now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from hs_capture.export.run import Outcome

_TERMINAL_SECONDS = 0.2
_PLAIN_SECONDS = 10.0


class Progress:
    """Tells `stream` (standard error by default) about an outcome; call it as often as you like."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._told = self._started

    def __call__(self, outcome: Outcome) -> None:
        """Say how far it is, if it is time to."""
        now = time.monotonic()
        last = outcome.done == outcome.total
        if last or now - self._told >= (_TERMINAL_SECONDS if self._live else _PLAIN_SECONDS):
            self._told = now
            self._tell(_line(outcome, now - self._started), last=last)

    def _tell(self, line: str, *, last: bool) -> None:
        start, end = ("\r\033[K", "\n" if last else "") if self._live else ("", "\n")
        print(start + line, end=end, file=self._stream, flush=True)


def _line(outcome: Outcome, seconds: float) -> str:
    parts = [f"{outcome.done:,} of {outcome.total:,} samples"]
    if outcome.written and seconds > 0:
        parts.append(f"{outcome.tokens / seconds:,.0f} tokens/s")
        parts.append(f"{outcome.bytes / 2**30:.2f} GiB written")
        left = (outcome.total - outcome.done) * seconds / outcome.done
        parts.append(f"{left:.0f} s left")
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} failed")
    return ", ".join(parts)
