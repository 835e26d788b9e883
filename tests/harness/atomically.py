"""Small files that another process reads at any moment."""

from __future__ import annotations

from pathlib import Path


def write_text(path: Path, text: str) -> Path:
    """Replace the file at `path` as a whole, and return it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return path
