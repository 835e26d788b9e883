"""One run of a server while it is written: its captures in order, and which may be removed."""

from __future__ import annotations

import os
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hs_capture.captured_request import Capture
from hs_capture.format.catalog import RUN_FILE, is_there
from hs_capture.format.index import IndexEntry
from hs_capture.format.links import Sources
from hs_capture.format.run import RunInfo
from hs_capture.format.tail import IndexTail

HOLD_SECONDS = 60.0
"""So long a capture waits for one that it has rows of, which the server may publish after it."""

Handed = tuple[IndexEntry, Capture]
"""A capture, and what its file says of it."""


class FollowedRun:
    """The captures of a run as they are published. Used by one thread."""

    def __init__(self, directory: Path, keep_seconds: float | None = None) -> None:
        """Read run.json; `FormatError` if it is damaged.

        `keep_seconds` says how long files stay after they were used; None is for ever.
        """
        self._directory = directory
        self._run = RunInfo.read(directory / RUN_FILE)
        self._tail = IndexTail(directory / f"index-{self._run.rank}.jsonl")
        # Where in the index the line of each key is, -1 where none was read yet. A server counts
        # its requests, so the keys are dense, and there may be millions.
        self._lines = array("q")
        self._sources = Sources(self._source)
        self._waiting: list[tuple[float, IndexEntry]] = []
        self._removable = None if keep_seconds is None else _Removable(directory, keep_seconds)
        # What was published and is not handed out yet may want rows of what is to be removed.
        self._scout = IndexTail(self._tail.path)

    @property
    def created(self) -> float:
        """When the run began, in Unix seconds."""
        return self._run.created

    def new(self, *, waits: bool = True) -> Iterator[Handed]:
        """The captures that were published since the last call.

        With `waits` those that have rows of a capture that is not published yet come later.
        """
        waiting, self._waiting = self._waiting, []
        for since, entry in waiting:
            yield from self._handed(entry, since, waits=waits)
        for entry in self._tail.read():
            self._note(entry)
            yield from self._handed(entry, time.monotonic(), waits=waits)

    def used(self, entry: IndexEntry) -> None:
        """Say that a capture was used.

        Its file is removed when that is to be, but not before every capture that is published by
        now and has rows of it was used, too.
        """
        if self._removable is not None:
            self._look_ahead(self._removable)
            self._removable.used(entry)

    def sweep(self, *, ends: bool = False) -> None:
        """Remove files whose time is over, and at the end all that were used."""
        if self._removable is not None:
            self._look_ahead(self._removable)
            self._removable.sweep(ends=ends)

    def _look_ahead(self, removable: _Removable) -> None:
        for entry in self._scout.read():
            removable.published(entry)

    def _note(self, entry: IndexEntry) -> None:
        if entry.key is not None:
            missing = entry.key + 1 - len(self._lines)
            if missing > 0:
                self._lines.extend([-1] * missing)
            self._lines[entry.key] = self._tail.line_at

    def _handed(self, entry: IndexEntry, since: float, *, waits: bool) -> Iterator[Handed]:
        # None stands for a record that was given up; a file may be taken by others.
        if entry.file is None:
            return
        path = os.path.join(self._directory, entry.file)
        if not is_there(path):
            if self._removable is not None:
                self._look_ahead(self._removable)
                self._removable.passed(entry)
            return
        known = all(self._is_known(key) for _, _, key in entry.links)
        if waits and not known and time.monotonic() - since < HOLD_SECONDS:
            self._waiting.append((since, entry))
            return
        sources = tuple(
            replace(source, file=os.path.join(self._directory, source.file))
            for source in self._sources.of(entry)
        )
        whole = self._sources.resolved(entry)
        yield entry, Capture(path, whole, self._run_of(entry), sources)

    def _is_known(self, key: int) -> bool:
        return 0 <= key < len(self._lines) and self._lines[key] >= 0

    def _source(self, key: int) -> IndexEntry | None:
        """The capture of a key, if it is there."""
        if not self._is_known(key):
            return None
        entry = self._tail.entry_at(self._lines[key])
        if entry.file is None or not is_there(os.path.join(self._directory, entry.file)):
            return None
        return entry

    def _run_of(self, entry: IndexEntry) -> RunInfo:
        """The run, which gets the norm of changed weights while it goes on."""
        if self._run.norm_of(entry.weights_version) is None:
            self._run = RunInfo.read(self._directory / RUN_FILE)
        return self._run


class _Removable:
    """Files of a run that were used, and by whom their rows are still wanted."""

    def __init__(self, directory: Path, keep_seconds: float) -> None:
        self._directory = directory
        self._keep_seconds = keep_seconds
        self._wanted: Counter[int] = Counter()
        """By how many captures that were not used yet, by key."""
        self._needed: dict[int, str] = {}
        """Used files whose rows are wanted."""
        self._used: OrderedDict[int, tuple[float, str]] = OrderedDict()
        """Those whose rows nobody wants, and since when, the longest first."""

    def published(self, entry: IndexEntry) -> None:
        """Learn of a capture that somebody may still want."""
        if entry.file is None:
            return
        for key in _keys(entry):
            self._wanted[key] += 1
            if key in self._used:
                self._needed[key] = self._used.pop(key)[1]

    def used(self, entry: IndexEntry) -> None:
        """Say that a capture was used; its file may go."""
        if entry.file is None:
            return
        if entry.key is None:
            self._remove(entry.file)
        elif self._wanted[entry.key]:
            self._needed[entry.key] = entry.file
        else:
            self._used[entry.key] = (time.monotonic(), entry.file)
        self.passed(entry)

    def passed(self, entry: IndexEntry) -> None:
        """Say that a capture wants nobody's rows any more."""
        for key in _keys(entry):
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
                if key in self._needed:
                    self._used[key] = (time.monotonic(), self._needed.pop(key))
        self.sweep()

    def sweep(self, *, ends: bool = False) -> None:
        """Remove what nobody has wanted for long enough, or all of that where it `ends`."""
        now = time.monotonic()
        while self._used:
            key, (since, file) = next(iter(self._used.items()))
            if since + self._keep_seconds > now and not ends:
                return
            del self._used[key]
            self._remove(file)

    def _remove(self, file: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._directory, file))


def _keys(entry: IndexEntry) -> set[int]:
    return {key for _, _, key in entry.links}
