"""What is in the output store already, and how a sample gets there: once, with its line."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from hs_capture.errors import ConfigError
from hs_capture.extract.output import OutputRun, Staged, append_durably, remove_sources
from hs_capture.extract.stored import captures, lined_rids, remove_parts
from hs_capture.format.catalog import RUN_FILE
from hs_capture.format.index import IndexEntry
from hs_capture.format.run import RunInfo
from hs_capture.samples import SAMPLES_FILE, Sample, append_line
from hs_capture.selection import Origin


@dataclass
class Totals:
    """The samples in the store."""

    captured: int = 0
    tokens: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    def add(self, entry: IndexEntry) -> None:
        """Count one more."""
        self.captured += 1
        self.tokens += entry.num_tokens
        self.raw_bytes += entry.raw_bytes
        self.stored_bytes += entry.stored_bytes


@dataclass
class _Ticket:
    run: OutputRun | None
    staged: Staged | None
    entry: IndexEntry
    sample: Sample
    done: bool = False
    error: BaseException | None = field(default=None)


class Ledger:
    """The samples of an output store. May be used by several threads at once."""

    def __init__(self, output: Path, key: str, rows: int) -> None:
        """Read which samples of the run with this key the store has; one byte a row is held.

        Nobody else may extract to `output` meanwhile. Raises `ConfigError` when it cannot be told
        which are there.
        """
        self.output = output
        self.totals = Totals()
        self.unclaimed: dict[int, tuple[str, IndexEntry]] = {}
        """Captures without a line, by sample: a crash came between the two."""
        self._key = key
        self._samples = output / SAMPLES_FILE
        self._has = bytearray(rows)
        self._runs: dict[Path, OutputRun] = {}
        self._runs_lock = threading.Lock()
        self._weights: dict[Path, int] = {}
        """The version of the weights that computed the captures of a run, by its folder here."""
        self._weights_lock = threading.Lock()
        self._tickets: list[_Ticket] = []
        self._tickets_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._read()

    def has(self, number: int) -> bool:
        """Whether sample `number` is in the store."""
        return bool(self._has[number])

    def origins(self) -> list[Origin]:
        """The runs that have captures here, each with the version of the weights of these."""
        with self._weights_lock:
            known = list(self._weights.items())
        return [(RunInfo.read(folder / RUN_FILE), version) for folder, version in known]

    def stage(self, run: Path, file: str) -> tuple[OutputRun, Staged]:
        """Copy a capture of the server's run in the folder `run`; see `OutputRun.stage`."""
        with self._runs_lock:
            if run not in self._runs:
                self._runs[run] = OutputRun(run, self.output)
        return self._runs[run], self._runs[run].stage(file)

    def enter(self, run: OutputRun, staged: Staged, sample: Sample) -> None:
        """Publish a staged capture with the line of its sample; both are durable on return.

        Raises `OSError` when the output takes no more; the source is still there then. Raises
        `ConfigError` for a capture of other weights than those of this run that are here already.
        """
        try:
            self._require_same_weights(run.path, staged.entry.weights_version)
        except ConfigError:
            run.discard(staged)
            raise
        self._commit(_Ticket(run, staged, staged.entry, sample))

    def claim(self, entry: IndexEntry, sample: Sample) -> None:
        """Add the line of a sample whose capture is in the store already."""
        self._commit(_Ticket(None, None, entry, sample))

    def _require_same_weights(self, run: Path, version: int) -> None:
        with self._weights_lock:
            there = self._weights.setdefault(run, version)
        if version != there:
            raise ConfigError(
                f"the server's weights were changed: this capture is of version {version}, those "
                f"of {run} are of version {there}: start the server again"
            )

    def _commit(self, ticket: _Ticket) -> None:
        """Commit this ticket together with all that others have brought by then.

        Making files durable takes long, and as long for one as for many.
        """
        with self._tickets_lock:
            self._tickets.append(ticket)
        with self._commit_lock:
            if not ticket.done:
                with self._tickets_lock:
                    batch, self._tickets = self._tickets, []
                self._commit_batch(batch)
        if ticket.error is not None:
            raise ticket.error

    def _commit_batch(self, batch: list[_Ticket]) -> None:
        try:
            for run in {id(t.run): t.run for t in batch if t.run is not None}.values():
                run.commit([t.staged for t in batch if t.run is run and t.staged is not None])
            lines = b"".join(append_line(ticket.sample) for ticket in batch)
            append_durably(self._samples, lines, 0o600)
        except BaseException as error:
            for ticket in batch:
                if ticket.run is not None and ticket.staged is not None:
                    ticket.run.discard(ticket.staged)
                ticket.done, ticket.error = True, error
            return
        remove_sources(ticket.staged for ticket in batch if ticket.staged is not None)
        for ticket in batch:
            self._has[ticket.sample.number] = 1
            self.totals.add(ticket.entry)
            ticket.done = True

    def _read(self) -> None:
        remove_parts(self.output, self._key)
        # By rid, not by sample: a sample that is captured a second time has two of them.
        lined = set(lined_rids(self.output))
        for folder, entry in captures(self.output, self._key):
            number = number_of(entry.rid, self._key)
            if number is None or number >= len(self._has):
                continue
            self._weights.setdefault(folder, entry.weights_version)
            if entry.rid not in lined:
                self.unclaimed[number] = (os.path.join(folder, str(entry.file)), entry)
            elif not self._has[number]:
                self._has[number] = 1
                self.totals.add(entry)
        for number in [number for number in self.unclaimed if self._has[number]]:
            del self.unclaimed[number]


def rid_of(key: str, number: int, session: int, attempt: int) -> str:
    """The rid under which a sample is asked for."""
    return f"{key}-{number:08d}-{session}.{attempt}"


def number_of(rid: str, key: str) -> int | None:
    """The sample that a rid asks for, or None when it is of another run or asks for none."""
    found, _, rest = rid.partition("-")
    number = rest.partition("-")[0]
    return int(number) if found == key and number.isdecimal() else None
