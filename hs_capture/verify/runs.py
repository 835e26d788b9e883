"""The runs in a dump directory: what each server start left, and whether it still serves."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hs_capture.errors import FormatError
from hs_capture.format.catalog import RUN_FILE, capture_files, runs_in
from hs_capture.format.index import IndexEntry, read_index
from hs_capture.format.links import Sources
from hs_capture.format.run import Refusal, RunInfo, Status
from hs_capture.soundness import newest_files
from hs_capture.verify.processes import started_at
from hs_capture.writer.leftovers import OPEN_FOLDER

REFUSAL_FILE = "last-refusal.json"
T = TypeVar("T")

HEARTBEAT_LIMIT = 30.0
"""Seconds without a heartbeat after which a writer counts as silent; it writes one a second."""

_CLOCK_SLACK = 2.0
"""Start times of processes are known to about a second."""


@dataclass(frozen=True)
class Run:
    """One run directory. Times are Unix seconds.

    `counters` are summed over the ranks, `incomplete_reasons` counts the index by reason. Of those
    whose file lacks rows, `linked` have all of them in the files of others.
    """

    path: Path
    info: RunInfo
    statuses: tuple[Status, ...]
    counters: Counter[str]
    incomplete_reasons: Counter[str]
    linked: int
    read_at: float
    server_alive: bool
    is_store: bool = False
    """Whether captures of the run were moved here: its writer reports where it writes them."""
    newest: Mapping[str, IndexEntry | None] = field(default_factory=dict)
    """The files of the newest captures, the newest first, each with its line in the index."""
    gone: tuple[str, ...] = ()
    """In a store: the rids of captures that the index names and whose files are not there."""

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the youngest sign of life of a writer; None when there was none."""
        beats = [status.heartbeat for status in self.statuses]
        return self.read_at - max(beats) if beats else None

    @property
    def silent(self) -> bool:
        """Whether no writer gave a sign of life lately.

        One from the future is as old as one from the past: the clock was put back since.
        """
        age = self.heartbeat_age
        return age is None or abs(age) >= HEARTBEAT_LIMIT

    @property
    def ended(self) -> bool:
        """Whether every writer has said that it is done."""
        return bool(self.statuses) and all(status.state == "ended" for status in self.statuses)

    @property
    def live(self) -> bool:
        """Whether its server still serves.

        A store is served by nobody. Where the server's process is not to be seen (another
        container, another host) a young heartbeat tells.
        """
        return not (self.ended or self.is_store) and (self.server_alive or not self.silent)

    @property
    def last_capture(self) -> float | None:
        """When the newest capture was published; None when there is none."""
        return max(
            (s.last_capture for s in self.statuses if s.last_capture is not None), default=None
        )

    @property
    def last_error(self) -> str | None:
        """The newest error that a rank reports."""
        return next((status.last_error for status in self.statuses if status.last_error), None)


@dataclass(frozen=True)
class Evidence:
    """All that a dump directory holds. `damage` has the message of every file that is broken."""

    runs: tuple[Run, ...]
    refusal: Refusal | None
    damage: tuple[str, ...]

    @property
    def judged(self) -> tuple[Run, ...]:
        """The runs that decide the verdict: those that serve, else the newest."""
        return tuple(run for run in self.runs if run.live) or self.runs[-1:]


def read_evidence(dump_dir: Path, sample: int | None) -> Evidence:
    """Read what servers left in `dump_dir` (or in one run directory), the oldest run first.

    `sample` is how many of the newest captures of each run are listed, None for all.
    """
    damage: list[str] = []
    refusal = _tried(Refusal.read, dump_dir / REFUSAL_FILE, damage)
    found = [_read_run(path, sample, damage) for path in _run_directories(dump_dir)]
    runs = [run for run in found if run is not None]
    runs.sort(key=lambda run: (run.info.created, run.info.run_id))
    return Evidence(tuple(runs), refusal, tuple(damage))


def _tried(read: Callable[[Path], T], file: Path, damage: list[str]) -> T | None:
    """What `read` makes of `file`; None if it is missing, or broken, which is noted."""
    try:
        return read(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FormatError as error:
        damage.append(str(error))
    except OSError as error:
        damage.append(f"{file}: cannot be read: {error.strerror}")
    return None


def _run_directories(dump_dir: Path) -> list[Path]:
    try:
        return runs_in(dump_dir)
    except OSError:
        # The check of the directory says what is wrong with it.
        return []


def _read_run(path: Path, sample: int | None, damage: list[str]) -> Run | None:
    info = _tried(RunInfo.read, path / RUN_FILE, damage)
    if info is None:
        return None
    newest = list(newest_files(path, sample))
    status_files = sorted(path.glob("status-*.json"))
    found = [_tried(Status.read, file, damage) for file in status_files]
    statuses = tuple(status for status in found if status is not None)
    indexes = [_tried(read_index, file, damage) for file in sorted(path.glob("index-*.jsonl"))]
    entries = [entry for index in indexes if index is not None for entry in index]
    counters: Counter[str] = Counter()
    for status in statuses:
        counters.update(status.counters)
    if not statuses:
        counters = _counted(entries)
    # Where a writer is or was killed, its folder of unfinished files is there.
    is_store = bool(entries) and not status_files and not (path / OPEN_FOLDER).exists()
    started = started_at(info.server_pid)
    # A process that started after the run is another one that got the same number.
    alive = started is not None and started <= info.created + _CLOCK_SLACK
    incomplete = [e for e in entries if e.file and e.incomplete_reason]
    sources = Sources.among([entry for entry in entries if entry.file])
    told = [sources.resolved(entry).incomplete_reason for entry in incomplete]
    reasons = Counter(reason for reason in told if reason is not None)
    linked = told.count(None)
    by_file = {entry.file: entry for entry in entries if entry.file}
    # Whoever reads a dump directory takes files out of it, and may; those of a store should stay.
    there = set(capture_files(path)) if is_store else by_file.keys()
    return Run(
        path,
        info,
        statuses,
        counters,
        reasons,
        linked,
        time.time(),
        alive,
        is_store,
        {file: by_file.get(os.path.relpath(file, path)) for file in newest},
        tuple(entry.rid for file, entry in by_file.items() if file not in there),
    )


def _counted(entries: list[IndexEntry]) -> Counter[str]:
    """What a status file would say of captures with these lines in the index."""
    captures = [entry for entry in entries if entry.file is not None]
    complete = sum(entry.complete for entry in captures)
    return Counter(
        captures=len(captures),
        complete=complete,
        incomplete=len(captures) - complete,
        tokens=sum(entry.rows for entry in captures),
        raw_bytes=sum(entry.raw_bytes for entry in captures),
        stored_bytes=sum(entry.stored_bytes for entry in captures),
        lost=len(entries) - len(captures),
    )
