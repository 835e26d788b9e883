"""index-<rank>.jsonl: one line a record, in publish order.

The index is a convenience that saves opening every capture file; the files are the truth. A line
counts once its line end is written, so whatever follows the last line end is a line that somebody
is still writing, or never finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from hs_capture.format.links import Link
from hs_capture.format.record import Record
from hs_capture.intervals import Interval


@dataclass(frozen=True, slots=True)
class IndexEntry(Record):
    """One line of the index.

    `file` is relative to the run directory, with forward slashes; None stands for a record that
    was given up without a file. `rows` counts the captured rows of `num_tokens`; `missing` holds
    the others as [start, stop) pairs. `published` is in Unix seconds. `key` is the number by which
    the server knew the request, for a rid may come again; None where it was not written yet.
    `weights_version`, `lora`, `links`, `prompt_tokens` and `rows_behind` are those of the capture's
    metadata; where there is no file they say nothing.
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
    links: tuple[Link, ...] = ()
    prompt_tokens: int | None = None
    rows_behind: int = 0

    def lacking(self, missing: tuple[Interval, ...], reason: str | None) -> IndexEntry:
        """The entry with these rows as `missing`, for `reason`; `rows` stays what it is.

        Several times as fast as ``dataclasses.replace``, for there may be millions.
        """
        values = list(_values_of(self))
        values[_PLACES["complete"]] = not missing
        values[_PLACES["incomplete_reason"]] = reason
        values[_PLACES["missing"]] = missing
        return IndexEntry(*values)


_NAMES = tuple(field.name for field in fields(IndexEntry))
_PLACES = {name: place for place, name in enumerate(_NAMES)}
_values_of = attrgetter(*_NAMES)
_NAMES_OF_EARLY_VERSIONS = _NAMES[:-3]
"""The fields of their lines, without links and generated tokens."""
_COMPLETE = (
    *(int, str, str, int, int, bool, type(None), list, int, int, float),
    *(int, int, type(None), list),
)
"""The types of the fields of a complete capture of a prompt, without an adapter; all but the last
two, which are about generated tokens."""
_LINKED = tuple(
    str if name == "incomplete_reason" else kind
    for name, kind in zip(_NAMES, _COMPLETE, strict=False)
)
"""The same of a capture with links, which by itself is never complete."""


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
                yield parse_line(line, f"{os.fspath(path)}: line {number}")


def parse_line(line: bytes, place: str) -> IndexEntry:
    """The entry in a finished `line`; `place` starts the message of a `FormatError`."""
    return _usual(line) or IndexEntry.from_json(line, place)


def _usual(line: bytes) -> IndexEntry | None:
    """The entry in a line as releases write it for a complete capture; None for most others.

    Captures with links are usual, too: a server may make nothing else for days.

    A million lines are read in seconds this way, where checking each field by its annotation takes
    minutes. What is not usual is left to that check.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if type(value) is not dict:
        return None
    names = tuple(value)
    if names == _NAMES_OF_EARLY_VERSIONS:
        value |= {"links": [], "prompt_tokens": None, "rows_behind": 0}
    elif names != _NAMES:
        return None
    *kinds, prompt, behind = map(type, value.values())
    types = tuple(kinds)
    if behind is not int or (prompt is not type(None) and prompt is not int):
        return None
    missing, links = value["missing"], value["links"]
    if types == _COMPLETE and not missing and not links:
        value["missing"] = value["links"] = ()
        return IndexEntry(**value)
    if types == _LINKED and _are_of(2, missing) and _are_of(3, links):
        value["missing"], value["links"] = tuple(map(tuple, missing)), tuple(map(tuple, links))
        return IndexEntry(**value)
    return None


def _are_of(size: int, items: list[Any]) -> bool:
    """Whether each of `items` is a list of `size` integers."""
    return all(type(i) is list and [*map(type, i)] == [int] * size for i in items)


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
