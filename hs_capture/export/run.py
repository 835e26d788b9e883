"""Carrying a plan out: several processes write, this one gives each file its name.

A worker writes a sample to a temporary file and makes it durable; here it is renamed and recorded,
in the order of the plan. So a format that counts its rows without holes has none, whatever fails,
and an export that was stopped anywhere goes on from its ledger.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture.counted import count_text
from hs_capture.errors import ConfigError, HsCaptureError
from hs_capture.export.jobs import Rows
from hs_capture.export.ledger import LEDGER_FILE, Exported, Ledger
from hs_capture.export.origin import origin_of
from hs_capture.export.sidecar import SIDECAR_FILE, Sidecar
from hs_capture.export.task import Task, Written
from hs_capture.format.atomic import sync_folder
from hs_capture.format.catalog import is_there
from hs_capture.output_folder import refuse_file

if TYPE_CHECKING:
    from hs_capture.export.jobs import Job
    from hs_capture.export.plan import Plan

_AHEAD = 4
"""How many samples a worker has waiting for it; bounds what is held at once."""


@dataclass
class Outcome:
    """What an export has done so far. `failed` pairs a rid with the cause."""

    total: int
    written: int = 0
    kept: int = 0
    tokens: int = 0
    bytes: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Samples that are settled, one way or the other."""
        return self.written + self.kept + len(self.failed)


def run(
    plan: Plan, output: Path, workers: int, told: Callable[[Outcome], None] = lambda _: None
) -> Outcome:
    """Export to the folder `output`, which is created; `told` hears of each settled sample.

    A sample that cannot be read is recorded in the outcome and does not stop the others.

    Raises:
        ConfigError: the folder holds something else, or another export is writing there.
        OSError: the folder cannot be written, as when its file system is full.
    """
    refuse_file(output, "folder")
    output.mkdir(parents=True, exist_ok=True)
    # Before anything is made in it, so that a refused folder stays as it is.
    _require_fit(plan, output)
    with Ledger(output) as ledger, _executor(workers) as executor:
        # Once more, for another export may have begun here before the ledger was ours.
        _require_fit(plan, output)
        _require_known(plan, ledger)
        plan.sidecar.write(output / SIDECAR_FILE, 0o644)
        outcome = Outcome(len(plan.jobs))
        rows = Rows(plan.jobs)
        for place, (job, settled) in enumerate(_settled(plan, ledger, executor, workers)):
            number = len(rows) if plan.format.dense else job.number
            try:
                _settle(plan, ledger, job, number, settled, outcome)
            except (HsCaptureError, FileNotFoundError) as error:
                outcome.failed.append((job.capture.rid, str(error)))
            else:
                rows.add(number, place)
            told(outcome)
        _remove_superseded(plan, ledger, rows)
        if plan.format.close is not None:
            plan.format.close(output, rows)
        plan.sidecar.finished(len(rows)).write(output / SIDECAR_FILE, 0o644)
    return outcome


def _require_fit(plan: Plan, output: Path) -> None:
    """The folder is empty, or holds what earlier runs of this export wrote."""
    try:
        there = Sidecar.read(output / SIDECAR_FILE)
    except FileNotFoundError:
        if not all(map(_is_empty_ledger, output.iterdir())):
            raise ConfigError(
                f"{output}: it holds files, but no {SIDECAR_FILE} of an export; "
                "choose an empty folder"
            ) from None
    else:
        differences = there.differences(plan.sidecar)
        if differences:
            raise ConfigError(
                f"{output}: it holds another export: {'; '.join(differences)}. "
                "Choose an empty folder"
            )


def _is_empty_ledger(path: Path) -> bool:
    """An export makes it before anything else, and may be stopped right behind that."""
    return path.name == LEDGER_FILE and path.stat().st_size == 0


def _require_known(plan: Plan, ledger: Ledger) -> None:
    """A trainer would read the files of samples that are gone, as if they belonged here."""
    root = plan.store_path
    gone = [
        line
        for line in ledger.by_source().values()
        if not is_there(os.path.join(root, line.source))
    ]
    if gone:
        what, whats = "sample whose capture is", "samples whose captures are"
        raise ConfigError(
            f"{ledger.output}: it holds {count_text(len(gone), what, whats)} no longer in "
            f"{root}, such as rid {gone[0].rid!r}; export to another folder"
        )


@contextmanager
def _executor(workers: int) -> Iterator[Executor | None]:
    if workers == 1:
        yield None
        return
    # A fork of this process would have the locks of threads that it does not have; the fork server
    # has none, and imports torch once for all workers.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hs_capture.export.task"])
    pool = ProcessPoolExecutor(workers, context, initializer=_in_worker)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _in_worker() -> None:
    import torch

    # Ctrl-C reaches the whole group; the parent decides, and a file is finished or not there.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _settled(
    plan: Plan, ledger: Ledger, executor: Executor | None, workers: int
) -> Iterator[tuple[Job, Exported | Callable[[], Written]]]:
    """Each job in order, with the file it has already or with what waits for its new one."""
    known = ledger.by_source()
    ahead: deque[tuple[Job, Exported | Callable[[], Written]]] = deque()
    for job in plan.jobs:
        line = known.get(job.source)
        if line is not None and _is_done(plan, ledger, job, line):
            ahead.append((job, line))
        else:
            ahead.append((job, _start(Task.of(plan, job, ledger.output), executor)))
        if len(ahead) > _AHEAD * workers:
            yield ahead.popleft()
    yield from ahead


def _is_done(plan: Plan, ledger: Ledger, job: Job, line: Exported) -> bool:
    """Whether the file of `line` is whole, and of what `job` is of now."""
    if line.origin is None or not ledger.whole(line):
        return False
    try:
        return origin_of(job, plan.format) == line.origin
    except FileNotFoundError:
        # The task will say so, in its turn.
        return False


def _start(task: Task, executor: Executor | None) -> Callable[[], Written]:
    if executor is None:
        return task
    future: Future[Written] = executor.submit(task)

    def wait() -> Written:
        try:
            return future.result()
        except BrokenProcessPool:
            raise OSError(
                errno.ENOMEM,
                "a worker process was killed, most likely for want of memory; "
                "run again with fewer --workers",
            ) from None

    return wait


def _settle(
    plan: Plan,
    ledger: Ledger,
    job: Job,
    number: int,
    settled: Exported | Callable[[], Written],
    outcome: Outcome,
) -> None:
    """See to it that the sample of `job` is in the file of this number, and in the ledger."""
    name = plan.format.file_name(number)
    if isinstance(settled, Exported):
        if settled.file == name:
            outcome.kept += 1
            return
        settled = Task.of(plan, job, ledger.output)
    written = settled()
    target = os.path.join(ledger.output, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    size = os.path.getsize(written.temporary)
    # Until the new line is there, the file must not pass for the one it replaces.
    if ledger.forget(name) or is_there(target):
        _open_again(plan, ledger.output)
    os.replace(written.temporary, target)
    tokens = job.capture.num_tokens
    rid = job.capture.rid
    known_as = job.sample.id if job.sample is not None else rid
    ledger.append(Exported(number, name, job.source, known_as, rid, tokens, size, written.origin))
    outcome.written += 1
    outcome.tokens += tokens
    outcome.bytes += size


def _open_again(plan: Plan, output: Path) -> None:
    """Take back that the folder is closed: it does not hold for files that are about to change."""
    if plan.format.closing_file is None:
        return
    try:
        os.unlink(os.path.join(output, plan.format.closing_file))
    except FileNotFoundError:
        return
    sync_folder(output)


def _remove_superseded(plan: Plan, ledger: Ledger, rows: Rows) -> None:
    """Remove files of earlier runs whose captures are not exported any more."""
    superseded = ledger.files_before()
    superseded.difference_update(map(plan.format.file_name, rows.numbers))
    for name in superseded:
        _open_again(plan, ledger.output)
        ledger.forget(name)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(ledger.output, name))
