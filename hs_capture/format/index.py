"""index-<rank>.jsonl: one line a record, in publish order.

The index is a convenience that saves opening every capture file; the files are the truth. A line
counts once its line end is written, so whatever follows the last line end is a line that somebody
is still writing, or never finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hs_capture.format.record import Record


@dataclass(frozen=True)
class IndexEntry(Record):
    """One line of the index.

    `file` is relative to the run directory, with forward slashes; None stands for a record that
    was given up without a file. `rows` counts the captured rows of `num_tokens`; `missing` holds
    the others as [start, stop) pairs. `published` is in Unix seconds. `key` is the number by which
    the server knew the request, for a rid may come again; None where it was not written yet.
    `weights_version` and `lora` are those of the capture's metadata; where there is no file they
    say nothing.
    """

    sequence: int
    file: str | None
    rid: str
    num_tokens: int
    rows: int
    complete: bool
    incomplete_reason: str | None
    missing: tuple[tuple[int, int], ...]
    raw_bytes: int
    stored_bytes: int
    published: float
    key: int | None = None
    weights_version: int = 0
    lora: str | None = None


def append_line(entry: IndexEntry) -> bytes:
    """The line for `entry`, to be appended in one write."""
    return entry.to_json() + b"\n"


def read_index(path: str | os.PathLike[str]) -> list[IndexEntry]:
    """The entries of the index at `path`; see `iterate_index`."""
    return list(iterate_index(path))


def iterate_index(path: str | os.PathLike[str]) -> Iterator[IndexEntry]:
    """The entries of the index at `path`, one after the other: there may be millions.

    An unfinished last line is passed over. A finished line that is broken raises `FormatError`
    with its number.
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):
                yield IndexEntry.from_json(line, f"{os.fspath(path)}: line {number}")


def cut_torn_line(path: str | os.PathLike[str]) -> int:
    """Remove an unfinished last line, so that the next append starts a line; returns its bytes.

    For the one process that appends: on opening an index that another process may have left, and
    after a failed append.
    """
    with Path(path).open("r+b") as file:
        data = file.read()
        keep = data.rfind(b"\n") + 1
        file.truncate(keep)
    return len(data) - keep
