"""Captures as a server publishes them, for training while it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from hs_capture.captured_request import Capture
from hs_capture.errors import StoreNotFoundError
from hs_capture.followed_run import FollowedRun
from hs_capture.format.catalog import RUN_FILE
from hs_capture.format.index import IndexEntry


def stream(
    path: str | os.PathLike[str],
    *,
    delete: bool = False,
    keep_seconds: float = 0.0,
    incomplete: bool = False,
    idle_seconds: float | None = None,
    poll_seconds: float = 0.2,
) -> Iterator[Capture]:
    """Yield the captures under `path`, those that are there and those that come, oldest first.

    `path` is a dump directory, which may be empty still, or one run in it. It goes on for ever,
    through the end of a server and the start of the next; with `idle_seconds` until nothing was
    published for so long. A capture that has rows of one that is not published yet comes after it,
    or after a minute.

    Args:
        path: where a server writes.
        delete: remove each file once the loop asks for the next capture, so that the one in hand is
            never removed and a loop that is left keeps its last. Incomplete ones go too. A file
            that captures which are published and were not yielded yet have rows of stays for them.
        keep_seconds: with `delete`, how long a file stays after it, or the last capture that has
            rows of it, was asked for. A later request may have rows of it only while it is there.
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
    follower = _Follower(folder, keep_seconds if delete else None)
    return _follow(follower, incomplete, idle_seconds, poll_seconds)


def _follow(
    follower: _Follower, incomplete: bool, idle_seconds: float | None, poll_seconds: float
) -> Iterator[Capture]:
    last = time.monotonic()
    ends = False
    while True:
        for run, entry, capture in follower.new(waits=not ends):
            if capture.complete or incomplete:
                yield capture
            run.used(entry)
            last = time.monotonic()
        idle = idle_seconds is not None and time.monotonic() - last >= idle_seconds
        follower.sweep(ends=ends and idle)
        if ends and idle:
            return
        # Whatever still waits comes in one more round.
        ends = idle
        if not ends:
            time.sleep(poll_seconds)


class _Follower:
    """The runs under a folder."""

    def __init__(self, folder: Path, keep_seconds: float | None) -> None:
        self._folder = folder
        self._keep_seconds = keep_seconds
        self._runs: dict[Path, FollowedRun] = {}

    def new(self, *, waits: bool) -> Iterator[tuple[FollowedRun, IndexEntry, Capture]]:
        """The captures that were published since the last call, run by run.

        With `waits` those that have rows of a capture that is not published yet come later.
        """
        self._look_for_runs()
        for run in sorted(self._runs.values(), key=lambda run: run.created):
            for entry, capture in run.new(waits=waits):
                yield run, entry, capture

    def sweep(self, *, ends: bool) -> None:
        """Remove files whose time is over, and at the end all that were used."""
        for run in self._runs.values():
            run.sweep(ends=ends)

    def _look_for_runs(self) -> None:
        for file in (self._folder / RUN_FILE, *self._folder.glob(f"*/{RUN_FILE}")):
            if file.parent not in self._runs and file.exists():
                self._runs[file.parent] = FollowedRun(file.parent, self._keep_seconds)
