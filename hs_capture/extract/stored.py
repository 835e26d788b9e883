"""What lies in an output store: the lines of samples, the captures, and what a crash left over.

The files are the truth, as they are for every reader: a capture that no index names is described by
its own footer, and a line of an index whose file is gone describes nothing. What cannot be read is
refused, with what to do: a sample that is there and is not seen would be fetched a second time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hs_capture.errors import ConfigError, FormatError
from hs_capture.extract.output import PART
from hs_capture.format.catalog import (
    RUN_FILE,
    SUFFIX,
    capture_files,
    describe,
    is_there,
    may_hold_captures,
)
from hs_capture.format.index import IndexEntry, cut_torn_line
from hs_capture.format.record import Record
from hs_capture.format.run import RunInfo
from hs_capture.format.tail import IndexTail
from hs_capture.samples import SAMPLES_FILE, end_last_line

_RUN_IS_LOST = (
    "put it back (the run of this name in the server's dump directory has the same one), or remove "
    "the folder: its samples are fetched again then"
)


@dataclass(frozen=True)
class _Line(Record):
    """Of a line of samples.jsonl, what says whose it is."""

    rid: str


def lined_rids(output: Path) -> Iterator[str]:
    """The rids that have a line in samples.jsonl; an unfinished last line is cut off.

    One that lacks its line end alone counts, as it does for readers, and gets it.

    Raises `ConfigError` for a finished line that is broken.
    """
    path = output / SAMPLES_FILE
    if not path.exists():
        return
    end_last_line(path)
    cut_torn_line(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield _rid(line, f"{path}: line {number}")


def captures(output: Path, key: str) -> Iterator[tuple[Path, IndexEntry]]:
    """Each capture file in a run of the store, with the folder of the run, in no order.

    Of others than the extraction with this key only those that an index names.

    Raises `ConfigError` when captures of the extraction with this key lie in no run, when a
    run.json is damaged, and when a capture can be described neither by an index nor by itself.
    """
    for folder in _folders(output):
        try:
            run = is_there(str(folder / RUN_FILE))
        except PermissionError:
            # What may not be looked into is no run.
            continue
        if not run:
            if any(_is_of(key, name) for name in _names_as_in_a_run(folder)):
                raise ConfigError(f"{folder} holds captures, but no {RUN_FILE}: {_RUN_IS_LOST}")
            continue
        try:
            RunInfo.read(folder / RUN_FILE)
        except FormatError as error:
            raise ConfigError(f"{error}; {_RUN_IS_LOST}") from error
        files = set(capture_files(folder))
        for entry in _indexed(folder):
            if entry.file in files:
                files.remove(entry.file)
                yield folder, entry
        # Those of others are not opened: damaged or not, they are no samples of this extraction.
        for file in sorted(file for file in files if _is_of(key, file)):
            yield folder, _described(folder, file)


def remove_parts(output: Path, key: str) -> None:
    """Remove the unfinished copies that a killed extraction with this key left in the store.

    Whoever else copies captures to the store keeps his own.
    """
    for left_over in output.glob(f"*/*/.*{PART}"):
        if _is_of(key, left_over.name):
            left_over.unlink(missing_ok=True)


def _folders(output: Path) -> list[Path]:
    return sorted(p for p in output.glob("*") if may_hold_captures(p.name) and os.path.isdir(p))


def _names_as_in_a_run(folder: Path) -> Iterator[str]:
    """The names of the captures that lie in `folder` where a run has them; see docs/files.md.

    What lies deeper, such as a copy of a whole run, is none of the store's.
    """
    for block in _names(folder):
        if block.isdecimal():
            yield from (name for name in _names(folder / block) if name.endswith(SUFFIX))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (PermissionError, NotADirectoryError):
        return []


def _rid(line: bytes, place: str) -> str:
    try:
        return _Line.from_json(line, place).rid
    except FormatError as error:
        raise ConfigError(
            f"{error}; remove that line and run the same command again: the capture that it was of "
            "gets another one"
        ) from error


def _is_of(key: str, file: str) -> bool:
    """Whether a capture's file is named after a rid with this key; see docs/files.md."""
    return f"-{key}-" in os.path.basename(file)


def _indexed(run: Path) -> Iterator[IndexEntry]:
    for path in sorted(run.glob("index-*.jsonl")):
        index = IndexTail(path)
        while True:
            try:
                yield from index.read()
            except FormatError:
                # The next read goes on behind the broken line, and its file speaks for itself.
                continue
            break


def _described(run: Path, file: str) -> IndexEntry:
    try:
        return describe(run, file)
    except FormatError as error:
        raise ConfigError(
            f"{error}; and no index of {run} names this file: remove it and run the same command "
            "again, its sample is fetched again then"
        ) from error
