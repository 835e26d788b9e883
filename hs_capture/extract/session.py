"""One call of extract: from what it is given to a store and its summary."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hs_capture.errors import ConfigError, StoreNotFoundError
from hs_capture.extract.approval import Approval
from hs_capture.extract.arrivals import Arrivals
from hs_capture.extract.chat import ChatTokenizer
from hs_capture.extract.claim import claim
from hs_capture.extract.drain import refuse_nesting
from hs_capture.extract.extraction import Effort, Extraction
from hs_capture.extract.failures import Failures
from hs_capture.extract.ledger import Ledger
from hs_capture.extract.plan import (
    EXTRACT_FILE,
    Input,
    Summary,
    Target,
    open_summary,
)
from hs_capture.extract.progress import Progress
from hs_capture.extract.samples import Prompt, RowError, prompt_of
from hs_capture.extract.server import Server
from hs_capture.extract.source import open_source
from hs_capture.format.catalog import RUN_FILE
from hs_capture.format.run import RunInfo
from hs_capture.output_folder import refuse_file

_SUMMARY_SECONDS = 5.0
_LAST_SECONDS = 20.0
"""How long requests in flight may take to end after an interruption."""


class Session:
    """Extracts what the store lacks."""

    def __init__(
        self,
        source: Path,
        tokenizer: Path | None,
        shard: tuple[int, int],
        servers: list[tuple[str, Path]],
        output: Path,
        effort: Effort,
        *,
        trust_remote_code: bool = False,
    ) -> None:
        """`servers` are addresses with their dump directories. Raises `ConfigError`."""
        self._source = open_source(source)
        self._tokenizer = (
            ChatTokenizer(tokenizer, trust_remote_code=trust_remote_code) if tokenizer else None
        )
        self._shard, self._output, self._effort = shard, output, effort
        # Followed under two names, a directory would lose under one what the other waits for.
        self._servers = [(url, dump_dir.resolve()) for url, dump_dir in servers]
        refuse_file(output, "directory")
        for _, dump_dir in servers:
            refuse_nesting(dump_dir, output)

    def run(self) -> tuple[Summary, Exception | None]:
        """Do it; returns how far it came, and what stopped it, if something did.

        Raises `ConfigError` or `ServerGoneError` when it cannot begin, and `OSError` for an input
        or an output that cannot be read or written.
        """
        with ExitStack() as stack:
            directories = sorted({dump_dir for _, dump_dir in self._servers})
            for dump_dir in directories:
                if not dump_dir.is_dir():
                    raise StoreNotFoundError(
                        f"{dump_dir}: there is no such directory; it has to be the "
                        "SGLANG_HS_DUMP_DIR of the server, which has to run on this host"
                    )
                stack.enter_context(claim(dump_dir, alone=False))
            self._output.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(_alone(self._output))
            summary = open_summary(self._output, self._input())
            self._summary = replace(summary, sessions=summary.sessions + 1)
            self._ledger = Ledger(self._output, summary.key, summary.input.rows)
            targets = [Target.of(run) for run in _runs(self._output)]
            if summary.target is not None:
                targets.append(summary.target)
            self._approval = Approval(self._output, targets, self._ledger.origins())
            arrivals = {d: Arrivals(d, self._is_ours) for d in directories}
            for watched in arrivals.values():
                watched.start()
                stack.callback(watched.stop)
            silence = self._effort.silence_seconds
            servers = [
                Server(url, arrivals[d], summary.key, self._summary.sessions, silence)
                for url, d in self._servers
            ]
            for server in servers:
                server.meet(self._approval)
            return self._extract(servers, directories)

    def _extract(
        self, servers: list[Server], directories: list[Path]
    ) -> tuple[Summary, Exception | None]:
        progress = Progress(self._summary.samples, directories)
        self._failures = Failures(self._output, progress.say)
        session = Extraction(
            self._prompts(),
            servers,
            self._ledger,
            self._failures,
            (self._summary.key, self._summary.sessions),
            self._effort,
            self._approval,
            progress.say,
        )
        started, before = time.monotonic(), self._summary.seconds
        state = "finished"
        self._count("running", before)
        # Without its key the store could not be gone on with: no capture may come before it.
        self._summary.write(self._output / EXTRACT_FILE, durable=True)
        session.start()
        try:
            with _terminated():
                saved = started
                while not session.wait(_LAST_SECONDS if session.error is not None else 0.2):
                    if session.error is not None:
                        break
                    totals, flying = self._ledger.totals, session.prompts.in_flight
                    progress.tell(totals, flying, self._failures.count)
                    if time.monotonic() - saved > _SUMMARY_SECONDS:
                        saved = time.monotonic()
                        self._save("running", before + saved - started)
        except KeyboardInterrupt:
            state = "interrupted"
            progress.say("interrupted: waiting for what is in flight")
            session.stop()
            session.wait(_LAST_SECONDS)
        if session.error is not None:
            state = "stopped"
        self._save(state, before + time.monotonic() - started)
        return self._summary, session.error

    def _input(self) -> Input:
        tokenizer = None if self._tokenizer is None else self._tokenizer.digest()
        return Input(self._source.digest(), len(self._source), tokenizer, self._shard)

    def _prompts(self) -> Iterator[Prompt]:
        turn, of = self._shard
        for row in self._source.rows():
            if row.number % of != turn or self._ledger.has(row.number):
                continue
            try:
                yield prompt_of(row, self._tokenizer)
            except RowError as error:
                self._failures.add(row.number, row.place, str(error), captured=False)
                if self._effort.fail_fast:
                    raise ConfigError(f"{row.place}: {error} (--fail-fast)") from error

    def _is_ours(self, rid: str) -> bool:
        return rid.startswith(f"{self._summary.key}-")

    def _save(self, state: str, seconds: float) -> None:
        self._count(state, seconds)
        # On a full disk the error that matters is told already.
        with suppress(OSError):
            self._summary.write(self._output / EXTRACT_FILE, durable=True)

    def _count(self, state: str, seconds: float) -> None:
        totals = self._ledger.totals
        self._summary = replace(
            self._summary,
            state=state,
            target=self._approval.target,
            captured=totals.captured,
            failed=self._failures.count,
            tokens=totals.tokens,
            raw_bytes=totals.raw_bytes,
            stored_bytes=totals.stored_bytes,
            seconds=round(seconds, 3),
        )


def _runs(output: Path) -> list[RunInfo]:
    return [RunInfo.read(path) for path in sorted(output.glob(f"*/{RUN_FILE}"))]


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Hold the output for a block; `ConfigError` when another extract does."""
    descriptor = os.open(output, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{output}: another hs-capture extract fills it") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _terminated() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C for a block."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
