"""Capture every sample that the store lacks: threads that ask, wait, check and move."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hs_capture.counted import count_text
from hs_capture.errors import ConfigError, FormatError, HsCaptureError
from hs_capture.extract.approval import Approval
from hs_capture.extract.arrivals import Arrival
from hs_capture.extract.client import (
    LONGEST_SILENCE,
    NobodyError,
    RefusedError,
    RowRefusedError,
    ServerError,
    ServerGoneError,
)
from hs_capture.extract.failures import HOPELESS, Failures
from hs_capture.extract.judgement import problem_of
from hs_capture.extract.ledger import Ledger, rid_of
from hs_capture.extract.losses import Losses
from hs_capture.extract.pause import pause
from hs_capture.extract.prompts import PromptQueue
from hs_capture.extract.samples import Prompt, RowError, check_ids
from hs_capture.extract.server import Server
from hs_capture.samples import Sample


@dataclass(frozen=True)
class Effort:
    """How much is done for a sample. `silence_seconds` is the longest wait for the answer to a
    request, `capture_seconds` that for a capture after it, and `server_seconds` that for a server
    that is gone."""

    concurrency: int = 32
    retries: int = 3
    capture_seconds: float = 120.0
    server_seconds: float = 1800.0
    fail_fast: bool = False
    silence_seconds: float = LONGEST_SILENCE


class _UnfitError(HsCaptureError):
    """A sample could not be captured; the message says why."""


class _LostError(ServerGoneError):
    """The server went away with a prompt that it had been given."""


class _EndedError(HsCaptureError):
    """The session ends before this sample is done."""


class Extraction:
    """One session. `start` it, look at it, and `stop` it or wait until it has `ended`."""

    def __init__(
        self,
        prompts: Iterator[Prompt],
        servers: list[Server],
        ledger: Ledger,
        failures: Failures,
        rids: tuple[str, int],
        effort: Effort,
        approval: Approval,
        say: Callable[[str], None],
    ) -> None:
        """`rids` is the key of the store and the number of the session; `approval` knows
        which runs and weights may fill the store."""
        self.prompts = PromptQueue(prompts)
        self.error: Exception | None = None
        """What stopped the session, if something did."""
        self._ledger, self._failures, self._effort = ledger, failures, effort
        self._approval, self._say = approval, say
        self._key, self._session = rids
        self._losses = Losses(effort.retries)
        self._attempts = itertools.count(1)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        # Those that have no prompt and wait for a server, which may never answer them.
        self._waiting: set[threading.Thread] = set()
        self._threads = [
            threading.Thread(target=self._work, args=(server,), name="extract", daemon=True)
            for server in servers
            for _ in range(effort.concurrency)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self, error: Exception | None = None) -> None:
        """Begin nothing more; what is under way is finished or given up soon."""
        with self._lock:
            self.error = self.error or error
        self._stop.set()
        self.prompts.close()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for the end; returns whether it has come."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            working = [t for t in self._threads if t.is_alive() and t not in self._waiting]
            return not working and (self.prompts.is_over or not self._waiting)

    def _work(self, server: Server) -> None:
        try:
            while (prompt := self.prompts.take()) is not None:
                self._settle(server, prompt)
        except Exception as error:
            # A full disk, a server that captures something else: no other sample fares better.
            self.stop(error)

    def _settle(self, server: Server, prompt: Prompt) -> None:
        """See to it that a prompt is captured, has failed, or is left for another session."""
        try:
            self._do(server, prompt)
        except ServerGoneError as error:
            if server.part():
                self._say(f"waiting for {server.name} to come back: {error}")
            if isinstance(error, _LostError):
                self._lose(prompt, error)
            else:
                self._give_back(prompt)
            self._wait_for(server, error)
            return
        except RowRefusedError as error:
            self._fail(prompt, str(error), tried=False)
        except (_UnfitError, RowError) as error:
            self._fail(prompt, str(error), tried=isinstance(error, _UnfitError))
        except _EndedError:
            pass
        except BaseException:
            self.prompts.done()
            raise
        self._done(prompt)

    def _done(self, prompt: Prompt) -> None:
        self._losses.forget(prompt.number)
        self.prompts.done()

    def _give_back(self, prompt: Prompt) -> None:
        self.prompts.give_back(prompt, behind=self._losses.suspects(prompt.number))

    def _lose(self, prompt: Prompt, error: _LostError) -> None:
        """Have a prompt asked for again with which a server went away, or take it for the cause.

        It may be the cause, or only have been there. So it is asked for again with the others at
        first, then with no other, behind all of them; and one loss alone may still be chance.
        """
        times = self._losses.add(prompt.number)
        alone = self._losses.alone(prompt.number)
        said = (
            f"the server went away {count_text(times, 'time')} with this prompt under way, "
            f"{alone} of them with no other: {error}"
        )
        if self._losses.blames(prompt.number):
            self._fail(prompt, said, tried=True)
            self._done(prompt)
            return
        if alone:
            self._say(f"once more: {prompt.place}: {said}")
        # A server that is only busy has time to become less so.
        self._stop.wait(pause(times - 1))
        self._give_back(prompt)

    def _do(self, server: Server, prompt: Prompt) -> None:
        run = server.run
        if run is None:
            raise ServerGoneError(f"{server.name} was lost with another prompt")
        check_ids(prompt, run.vocab_size)
        if prompt.number in self._ledger.unclaimed and self._claim(prompt):
            return
        problem = "nothing was tried"
        for attempt in range(self._effort.retries + 1):
            if attempt:
                self._stop.wait(pause(attempt))
            if self._stop.is_set():
                raise _EndedError
            rid = rid_of(self._key, prompt.number, self._session, next(self._attempts))
            try:
                arrival = self._ask(server, prompt, rid)
                found = self._move(server, arrival, prompt, rid)
            except (ServerError, FormatError, FileNotFoundError) as error:
                # A file that is gone was taken by somebody else who reads this dump directory.
                found = str(error)
            except OSError:
                # The output takes no more, and this may be the only copy of the capture.
                server.arrivals.leave(rid)
                raise
            finally:
                server.arrivals.forget(rid)
            if found is None:
                self._failures.good()
                return
            problem = found
        raise _UnfitError(problem)

    def _ask(self, server: Server, prompt: Prompt, rid: str) -> Arrival | None:
        try:
            return server.capture(prompt.input_ids, rid, self._effort.capture_seconds, self._stop)
        except (NobodyError, RowRefusedError):
            # The server has not had this prompt; or it says that it is this prompt's fault.
            raise
        except ServerGoneError as error:
            raise _LostError(str(error)) from error
        except RefusedError as error:
            raise _UnfitError(str(error)) from error

    def _move(
        self, server: Server, arrival: Arrival | None, prompt: Prompt, rid: str
    ) -> str | None:
        """Move a capture into the store; returns what is wrong with it, if something is."""
        if arrival is None:
            if self._stop.is_set():
                raise _EndedError
            return f"no capture came within {self._effort.capture_seconds:g} s of the answer"
        if arrival.path is None or not arrival.entry.complete:
            if arrival.entry.incomplete_reason == "weights_changed":
                raise ConfigError("the server's weights were changed: start the server again")
            return f"the capture is incomplete: {arrival.entry.incomplete_reason}"
        self._approval.require(server.name, arrival)
        run, staged = self._ledger.stage(arrival.run, arrival.path)
        try:
            problem = problem_of(staged.part, prompt.input_ids)
        except BaseException:
            run.discard(staged)
            raise
        if problem is not None:
            run.discard(staged)
            return problem
        sample = Sample(prompt.number, prompt.id, rid, prompt.loss_mask, arrival.next_token)
        self._ledger.enter(run, staged, sample)
        return None

    def _claim(self, prompt: Prompt) -> bool:
        """Add the line of a capture that is in the store without one, if it is right."""
        path, entry = self._ledger.unclaimed.pop(prompt.number)
        if not entry.complete or problem_of(path, prompt.input_ids) is not None:
            os.unlink(path)
            return False
        self._ledger.claim(entry, Sample(prompt.number, prompt.id, entry.rid, prompt.loss_mask))
        return True

    def _fail(self, prompt: Prompt, problem: str, *, tried: bool) -> None:
        self._failures.add(prompt.number, prompt.place, problem, captured=tried)
        if self._effort.fail_fast:
            self.stop(_first(prompt.place, problem))
        elif self._failures.in_a_row >= HOPELESS:
            self.stop(
                ConfigError(f"{HOPELESS} samples failed one after the other, the last: {problem}")
            )

    def _wait_for(self, server: Server, error: ServerGoneError) -> None:
        """Wait until the server is met again, nothing is left to be done, or the session ends."""
        with self._lock:
            self._waiting.add(threading.current_thread())
        for number in itertools.count(1):
            gone = server.gone_seconds()
            if gone > self._effort.server_seconds:
                self.stop(_gone_for(gone, server.name, error))
            if self.prompts.wait_until_over(pause(number)) or server.meet_again(self._approval):
                break
        with self._lock:
            self._waiting.discard(threading.current_thread())


def _gone_for(seconds: float, server: str, error: ServerGoneError) -> ServerGoneError:
    why = str(error).removeprefix(server).lstrip(": ")
    return ServerGoneError(
        f"{server} has been gone for {count_text(round(seconds), 'second')} (--server-timeout): "
        f"{why}; nothing is lost: start the server, and run the same command again to go on"
    )


def _first(place: str, problem: str) -> ConfigError:
    return ConfigError(f"{place}: {problem} (--fail-fast)")
