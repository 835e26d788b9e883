"""What a benchmark's captures came to: their number, and that none lacks a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path


def indexes(dump_dir: Path) -> Iterator[Path]:
    """The indexes of the runs in `dump_dir`."""
    return dump_dir.glob("*/index-*.jsonl")


def published_captures(dump_dir: Path) -> int:
    """How many lines the indexes in `dump_dir` have."""
    return sum(index.read_bytes().count(b"\n") for index in indexes(dump_dir))


def require_whole(files: Iterable[Path]) -> None:
    """Check that every request in these indexes has a file that lacks nothing.

    Raises:
        RuntimeError: one has none, or lacks rows for another reason than that they came from the
            prefix cache.
    """
    for index in files:
        for line in index.read_bytes().splitlines():
            entry = json.loads(line)
            if entry["file"] is None or entry["incomplete_reason"] not in (None, "prefix_cache"):
                raise RuntimeError(f"{index}: {entry['rid']}: {entry['incomplete_reason']}")
