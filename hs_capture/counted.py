"""Numbers with their nouns, for what is told to people."""

from __future__ import annotations


def count_text(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 capture", "2,000 captures"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
