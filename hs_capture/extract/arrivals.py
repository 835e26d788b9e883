"""Watch the indexes of a dump directory for captures that somebody waits for."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hs_capture.errors import FormatError
from hs_capture.extract.drain import run_folders
from hs_capture.format.index import IndexEntry
from hs_capture.format.run import RunInfo
from hs_capture.format.tail import IndexTail

POLL_SECONDS = 0.02

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    """A capture that the writer has published, or has given up (its entry names no file).

    `next_token` is what the server answered, where that is known.
    """

    run: Path
    entry: IndexEntry
    next_token: int | None = None

    @property
    def path(self) -> str | None:
        """The capture's file."""
        return None if self.entry.file is None else os.path.join(self.run, self.entry.file)


class Arrivals:
    """Follows all runs of a dump directory in a thread of its own, between `start` and `stop`."""

    def __init__(self, dump_dir: Path, is_ours: Callable[[str], bool]) -> None:
        """Captures of rids that are ours and that nobody waits for are removed: they belong to
        requests that were given up, by this process or by one before it."""
        self.dump_dir = dump_dir
        self._is_ours = is_ours
        self._tails: dict[Path, IndexTail] = {}
        self._waited_for: dict[str, Future[Arrival]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._said: str | None = None
        self._thread = threading.Thread(target=self._follow, name="arrivals", daemon=True)

    def start(self) -> None:
        """Look at what is there, and begin to watch."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def expect(self, rid: str) -> Future[Arrival]:
        """The capture of `rid`, which must not have been asked for yet."""
        future: Future[Arrival] = Future()
        with self._lock:
            self._waited_for[rid] = future
        return future

    def forget(self, rid: str) -> None:
        """Nobody waits for `rid` any more: its capture is removed when it comes."""
        with self._lock:
            future = self._waited_for.pop(rid, None)
        if future is not None and future.done():
            _remove(future.result())

    def leave(self, rid: str) -> None:
        """Nobody waits for `rid` any more, and its capture, which came, stays where it is."""
        with self._lock:
            self._waited_for.pop(rid, None)

    def look(self) -> None:
        """Take what was published since the last look."""
        for folder in run_folders(self.dump_dir):
            if folder not in self._tails:
                rank = RunInfo.read(folder / "run.json").rank
                self._tails[folder] = IndexTail(folder / f"index-{rank}.jsonl")
            for entry in self._tails[folder].read():
                if self._is_ours(entry.rid):
                    self._hand_over(Arrival(folder, entry))

    def _hand_over(self, arrival: Arrival) -> None:
        with self._lock:
            future = self._waited_for.get(arrival.entry.rid)
            if future is not None and not future.done():
                future.set_result(arrival)
                return
        _remove(arrival)

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self._look_again()

    def _look_again(self) -> None:
        try:
            self.look()
        except (OSError, FormatError) as error:
            # It is looked at again; what it hides shows as captures that do not come.
            if str(error) != self._said:
                logger.warning("%s", error)
            self._said = str(error)


def _remove(arrival: Arrival) -> None:
    if arrival.path is not None:
        with suppress(FileNotFoundError):
            os.unlink(arrival.path)
