"""How far a proof is: a line on standard error now and then, since a large head takes long."""

from __future__ import annotations

import sys
import time

SECONDS = 10.0
"""So often a line is written, at most."""


class Progress:
    """Call it with the number of captures that were compared, as often as you like."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, captures: int) -> None:
        """Say how far it is, if it is time to."""
        now = time.monotonic()
        if now - self._told >= SECONDS:
            self._told = now
            print(f"hs-capture verify: {captures:,} captures compared", file=sys.stderr, flush=True)
