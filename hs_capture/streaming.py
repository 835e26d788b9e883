"""Captures as a server publishes them, for training while it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hs_capture.errors import StoreNotFoundError
from hs_capture.format.catalog import RUN_FILE, is_there
from hs_capture.format.index import IndexEntry
from hs_capture.format.run import RunInfo
from hs_capture.format.tail import IndexTail
from hs_capture.store import Capture


def stream(
    path: str | os.PathLike[str],
    *,
    delete: bool = False,
    incomplete: bool = False,
    idle_seconds: float | None = None,
    poll_seconds: float = 0.2,
) -> Iterator[Capture]:
    """Yield the captures under `path`, those that are there and those that come, oldest first.

    `path` is a dump directory, which may be empty still, or one run in it. It goes on for ever,
    through the end of a server and the start of the next; with `idle_seconds` until nothing was
    published for so long.

    Args:
        path: where a server writes.
        delete: remove each file once the loop asks for the next capture, so that the one in hand is
            never removed and a loop that is left keeps its last. Incomplete ones go too.
        incomplete: yield incomplete captures as well; else they are passed over.
        idle_seconds: when to end.
        poll_seconds: how often to look.

    Raises:
        StoreNotFoundError: `path` is no directory.
        FormatError: a run.json or a line of an index is damaged.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise StoreNotFoundError(f"{folder}: no such directory; give the server's dump directory")
    return _follow(_Follower(folder), delete, incomplete, idle_seconds, poll_seconds)


def _follow(
    follower: _Follower,
    delete: bool,
    incomplete: bool,
    idle_seconds: float | None,
    poll_seconds: float,
) -> Iterator[Capture]:
    last = time.monotonic()
    while True:
        for capture in follower.new():
            if capture.complete or incomplete:
                yield capture
            if delete:
                with suppress(FileNotFoundError):
                    os.unlink(capture.file)
            last = time.monotonic()
        if idle_seconds is not None and time.monotonic() - last >= idle_seconds:
            return
        time.sleep(poll_seconds)


class _Follower:
    """The runs under a folder, and how far the index of each was read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[Path, RunInfo] = {}
        self._tails: dict[Path, IndexTail] = {}

    def new(self) -> Iterator[Capture]:
        """The captures that were published since the last call, run by run."""
        self._look_for_runs()
        for directory in sorted(self._runs, key=lambda folder: self._runs[folder].created):
            for index in sorted(directory.glob("index-*.jsonl")):
                tail = self._tails.setdefault(index, IndexTail(index))
                for entry in tail.read():
                    # None stands for a record that was given up; a file may be taken by others.
                    if entry.file is None:
                        continue
                    path = os.path.join(directory, entry.file)
                    if is_there(path):
                        yield Capture(path, entry, self._run_of(directory, entry))

    def _run_of(self, directory: Path, entry: IndexEntry) -> RunInfo:
        """The run, which gets the norm of changed weights while it goes on."""
        if self._runs[directory].norm_of(entry.weights_version) is None:
            self._runs[directory] = RunInfo.read(directory / RUN_FILE)
        return self._runs[directory]

    def _look_for_runs(self) -> None:
        for file in (self._folder / RUN_FILE, *self._folder.glob(f"*/{RUN_FILE}")):
            if file.parent not in self._runs and file.exists():
                self._runs[file.parent] = RunInfo.read(file)
