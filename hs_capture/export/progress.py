"""How far an export is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from hs_capture.counted import count_text
from hs_capture.progress import ProgressLine

if TYPE_CHECKING:
    from hs_capture.export.run import Outcome


class Progress:
    """Tells `stream` (standard error by default) about an outcome; call it as often as you like."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._line = ProgressLine(stream)
        self._started = time.monotonic()

    def __call__(self, outcome: Outcome) -> None:
        """Say how far it is, if it is time to."""
        last = outcome.done == outcome.total
        if self._line.due() or last:
            self._line.tell(_text(outcome, time.monotonic() - self._started), last=last)


def _text(outcome: Outcome, seconds: float) -> str:
    parts = [f"{outcome.done:,} of {count_text(outcome.total, 'sample')}"]
    if outcome.written and seconds > 0:
        parts.append(f"{outcome.tokens / seconds:,.0f} tokens/s")
        parts.append(f"{outcome.bytes / 2**30:.2f} GiB written")
        left = (outcome.total - outcome.done) * seconds / outcome.done
        parts.append(f"{left:.0f} s left")
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} failed")
    return ", ".join(parts)
