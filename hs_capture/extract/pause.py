"""How long to wait before something is tried again: each time twice as long, to an end."""

from __future__ import annotations

_FIRST = 0.5
_LONGEST = 10.0
_DOUBLINGS = 10
"""More of them are beyond the longest pause, and many more beyond what a float holds."""


def pause(number: int) -> float:
    """Seconds to wait before attempt `number`, of which 0 is the first."""
    return min(_FIRST * 2 ** min(number - 1, _DOUBLINGS), _LONGEST) if number else 0.0
