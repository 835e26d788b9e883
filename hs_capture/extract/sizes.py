"""Amounts in words."""

from __future__ import annotations


def human(size: float) -> str:
    """Bytes with a decimal unit, as disks are sold: 1.50 GB is 1.5e9 bytes."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
