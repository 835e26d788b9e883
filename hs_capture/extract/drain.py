"""Move finished captures from where the server writes them to durable storage, while it runs."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hs_capture.errors import ConfigError, FormatError, StoreNotFoundError
from hs_capture.extract.output import OutputRun, Staged, remove_sources
from hs_capture.format.catalog import SUFFIX, runs_in
from hs_capture.format.links import all_linked
from hs_capture.output_folder import refuse_file

BATCH = 64
"""Captures that become durable together: each folder and the index is synced once for them."""

POLL_SECONDS = 0.2


@dataclass
class Moved:
    """What a drain has done so far.

    `linked` counts captures whose missing rows are all linked to other requests: they read as
    complete where the captures of those are. `incomplete` counts the others that lack rows, and
    `lost` requests that the server has no file of.
    """

    captures: int = 0
    linked: int = 0
    incomplete: int = 0
    lost: int = 0
    tokens: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    """Captures that stay where they are, and what is wrong with each."""


class Drain:
    """Moves the captures of all runs in a dump directory, or of one run."""

    def __init__(
        self,
        source: Path,
        output: Path,
        workers: int = 4,
        say: Callable[[str], None] = print,
    ) -> None:
        """`source` is a dump directory or one run in it; `output` is created when it is missing.

        `say` is told of each capture that has to stay, once. Raises `ConfigError` when one of the
        two directories lies in the other, or the output is a file.
        """
        self.source, self.output = source, output
        self.moved = Moved()
        self._say = say
        self._runs: dict[Path, OutputRun] = {}
        self._workers = workers
        refuse_file(output, "directory")
        refuse_nesting(source, output)

    def drain(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Move all captures that are finished now; returns how many were moved.

        `goes_on` is asked after each `BATCH` of them; with its first no the rest stays where it is.
        Raises `OSError` when the output cannot take them (full, read-only); everything that is
        not there by then is still in the source. Damaged captures stay, and `moved` names them.
        """
        before = self.moved.captures
        with ThreadPoolExecutor(self._workers, thread_name_prefix="hs-capture-drain") as pool:
            for path in run_folders(self.source):
                run = self._run(path)
                files = finished(path, self.moved.damaged)
                while batch := list(islice(files, BATCH)):
                    self._move(run, batch, pool)
                    if not goes_on():
                        return self.moved.captures - before
                self.moved.lost += run.carry_losses()
        return self.moved.captures - before

    def follow(self, goes_on: Callable[[], bool]) -> None:
        """Drain again and again, as long as `goes_on`, asked within and after each round, says so.

        A full output does not end it: the captures wait where they are until there is room. The
        server waits for it as long as SGLANG_HS_BLOCK_TIMEOUT lets it, and then drops rows.
        """
        full = False
        while True:
            try:
                moved = self.drain(goes_on)
            except OSError as error:
                if not is_full(error):
                    raise
                if not full:
                    self._say(f"{self.output}: no room is left; captures wait in {self.source}")
                full, moved = True, 0
            else:
                full = False
            if not goes_on():
                return
            if not moved:
                time.sleep(POLL_SECONDS)

    def _run(self, path: Path) -> OutputRun:
        if path not in self._runs:
            self._runs[path] = OutputRun(path, self.output)
        return self._runs[path]

    def _move(self, run: OutputRun, files: list[str], pool: ThreadPoolExecutor) -> None:
        staged: list[Staged] = []
        error: BaseException | None = None
        # Every copy is waited for, also after an error: none may be left half-made.
        for file, future in [(file, pool.submit(run.stage, file)) for file in files]:
            failure = future.exception()
            if failure is None:
                staged.append(future.result())
            elif isinstance(failure, FormatError):
                self.moved.damaged[file] = str(failure)
                self._say(f"left where it is: {failure}")
            elif not isinstance(failure, FileNotFoundError) or os.path.exists(file):
                error = failure
        try:
            entries = run.commit(staged)
        except BaseException:
            for item in staged:
                run.discard(item)
            raise
        remove_sources(staged)
        for entry in entries:
            self.moved.captures += 1
            linked = not entry.complete and all_linked(entry)
            self.moved.linked += linked
            self.moved.incomplete += not (entry.complete or linked)
            self.moved.tokens += entry.rows
            self.moved.raw_bytes += entry.raw_bytes
            self.moved.stored_bytes += entry.stored_bytes
        if error is not None:
            raise error


def run_folders(source: Path) -> list[Path]:
    """The runs in a dump directory, or the one run that `source` is.

    Raises `StoreNotFoundError` when there is no such directory.
    """
    try:
        return runs_in(source)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"{source}: there is no such directory") from None


def finished(run: Path, passed_over: dict[str, str]) -> Iterator[str]:
    """The published captures in the folder of a run, in the order of their names."""
    for folder in sorted(path for path in run.iterdir() if path.name.isdecimal()):
        # Whoever else takes captures may take the folder, too.
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(folder)):
                file = os.path.join(folder, name)
                if name.endswith(SUFFIX) and not name.startswith(".") and file not in passed_over:
                    yield file


def is_full(error: OSError) -> bool:
    """Whether `error` says that a file system has no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def refuse_nesting(source: Path, output: Path) -> None:
    """Raise `ConfigError` when one of the directories is the other or lies in it."""
    one, other = source.resolve(), output.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise ConfigError(
            f"{output} and {source} lie in each other: captures have to go to another directory, "
            "on durable storage"
        )
