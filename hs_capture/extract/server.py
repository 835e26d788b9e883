"""One server with its dump directory: is it there, does it capture, and what?"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hs_capture.counted import count_text
from hs_capture.errors import ConfigError, FormatError, StoreNotFoundError
from hs_capture.extract.approval import Approval
from hs_capture.extract.arrivals import Arrival, Arrivals
from hs_capture.extract.client import (
    LONGEST_SILENCE,
    Client,
    RefusedError,
    RowRefusedError,
    ServerError,
    ServerGoneError,
)
from hs_capture.extract.drain import run_folders
from hs_capture.extract.failures import HOPELESS
from hs_capture.format.run import RunInfo, Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

SILENCE_SECONDS = 30.0
"""Age of a heartbeat from which a writer counts as gone; it writes one a second."""

_HEARTBEATS = 5
"""How many of them the writer may take to publish a capture of one token."""

_PROBE_SECONDS = 120.0

_LOOK_SECONDS = 5.0
"""Longest silence of a server that is looked at to see whether it is back."""


class Server:
    """Sends prompts to one server and hands back their captures. Threads may share it."""

    def __init__(
        self,
        url: str,
        arrivals: Arrivals,
        key: str,
        session: int,
        silence_seconds: float = LONGEST_SILENCE,
    ) -> None:
        """After `silence_seconds` without an answer to a request the server counts as gone."""
        self.client = Client(url, silence_seconds)
        self.arrivals = arrivals
        self._rids = (f"{key}-probe-{session}.{number}" for number in itertools.count())
        self._run: RunInfo | None = None
        self._parted: float | None = None
        self._refused = 0
        """Prompts that it did not take since it last took one."""
        self._lock = threading.Lock()
        # Held while a request finds out who is there, which may take as long as a request may.
        self._meeting = threading.Lock()

    @property
    def name(self) -> str:
        """The address."""
        return self.client.url

    @property
    def run(self) -> RunInfo | None:
        """The run of the server; None before the first meeting, and after a `part`."""
        return self._run

    def meet(self, approval: Approval) -> None:
        """Find out the run of the server by a request of one token, and show it to `approval` with
        the version of the weights that computed it.

        Raises `ServerGoneError` when nobody answers, `ConfigError` when the server does not
        capture into the dump directory, and when `approval` does not take the run.
        """
        self.client.require_answer()
        _require_writer(self.arrivals.dump_dir, self.name)
        run = approval.meet(self.name, self._probe())
        with self._lock:
            self._run, self._parted = run, None

    def meet_again(self, approval: Approval) -> bool:
        """After a `part`: whether the server is met. False at once while another thread tries.

        Somebody who answers, but computes no prompt, is still not the server. Raises `ConfigError`
        as `meet`.
        """
        if not self._meeting.acquire(blocking=False):
            return False
        try:
            if self._run is None:
                self.client.require_answer(_LOOK_SECONDS)
                self.meet(approval)
        except ServerGoneError:
            return False
        finally:
            self._meeting.release()
        return True

    def part(self) -> bool:
        """The server was lost: the next one at this address may be another.

        Returns whether this is news.
        """
        with self._lock:
            news = self._run is not None
            self._run = None
            self._parted = self._parted or time.monotonic()
            return news

    def gone_seconds(self) -> float:
        """How long ago the server was lost; 0.0 if it was met since then."""
        parted = self._parted
        return 0.0 if parted is None else time.monotonic() - parted

    def _probe(self) -> Arrival:
        rid = next(self._rids)
        future = self.arrivals.expect(rid)
        try:
            try:
                self.client.prefill(np.zeros(1, np.int64), rid)
            except (RefusedError, ServerError) as error:
                raise ConfigError(f"a prompt of one token was not taken: {error}") from error
            patience = _Patience(self.arrivals.dump_dir)
            while True:
                with suppress(NotYetError):
                    return future.result(timeout=0.05)
                if patience.is_over():
                    raise ConfigError(
                        f"{self.name} answered, but its capture does not come to "
                        f"{self.arrivals.dump_dir}: either this server runs without hs-capture, "
                        "or its SGLANG_HS_DUMP_DIR is another directory or on another host, or "
                        f"its SGLANG_HS_RIDS leaves out rids such as {rid}"
                    )
        finally:
            self.arrivals.forget(rid)

    def capture(
        self, input_ids: NDArray[np.int64], rid: str, seconds: float, ended: threading.Event
    ) -> Arrival | None:
        """Have one prompt computed, and wait at most `seconds` for its capture after the answer.

        Returns None when it does not come. Raises the errors of `Client.prefill`. The caller has
        to `forget` the rid when the capture is of no use. After many prompts in a row that the
        server does not take it is met again: does it take any?
        """
        future = self.arrivals.expect(rid)
        try:
            next_token = self.client.prefill(input_ids, rid)
        except RowRefusedError:
            self._doubt()
            raise
        self._refused = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not ended.is_set():
            with suppress(NotYetError):
                return replace(future.result(timeout=0.2), next_token=next_token)
        return None

    def _doubt(self) -> None:
        with self._lock:
            self._refused += 1
            enough = self._refused >= HOPELESS
            if enough:
                self._refused = 0
        if enough:
            self.part()


class _Patience:
    """Is over when writers were seen alive several times, or after a long time."""

    def __init__(self, dump_dir: Path) -> None:
        self._dump_dir = dump_dir
        self._deadline = time.monotonic() + _PROBE_SECONDS
        self._seen: dict[Path, set[float]] = {}

    def is_over(self) -> bool:
        for path, status in _statuses(self._dump_dir):
            if status.state == "serving":
                self._seen.setdefault(path, set()).add(status.heartbeat)
        beats = max(map(len, self._seen.values()), default=0)
        return beats > _HEARTBEATS or time.monotonic() > self._deadline


def _require_writer(dump_dir: Path, server: str) -> None:
    """Raise `ConfigError` when no server writes to the dump directory at all."""
    statuses = [status for _, status in _statuses(dump_dir)]
    now = time.time()
    if any(s.state == "serving" and now - s.heartbeat < SILENCE_SECONDS for s in statuses):
        return
    one, many = "run, which is not live", "runs, none of which is live"
    found = count_text(len(statuses), one, many) if statuses else "no run"
    raise ConfigError(
        f"no server captures into {dump_dir} (found {found}), so {server} runs without hs-capture, "
        "with another SGLANG_HS_DUMP_DIR, or on another host; run 'hs-capture verify' where it runs"
    )


def _statuses(dump_dir: Path) -> list[tuple[Path, Status]]:
    found = []
    try:
        runs = run_folders(dump_dir)
    except StoreNotFoundError as error:
        raise ConfigError(
            f"{error}: it has to be the SGLANG_HS_DUMP_DIR of the server, which is on this host"
        ) from error
    for run in runs:
        for path in run.glob("status-*.json"):
            with suppress(FileNotFoundError, FormatError):
                found.append((path, Status.read(path)))
    return found
