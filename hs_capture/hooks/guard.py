"""Nothing of ours may raise into a serving SGLang."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from types import TracebackType

from hs_capture.faults import FaultLog

logger = logging.getLogger("hs_capture")


class Guard:
    """Catches, counts and logs what goes wrong in our hooks, and measures how long they take.

    Used by one thread, the scheduler's.
    """

    def __init__(self) -> None:
        """Errors are only logged until `tell` is set."""
        self._faults = FaultLog(logger)
        self._depth = 0
        self._began = 0
        self._nanoseconds = 0
        self.tell: Callable[[str, bool], None] | None = None
        """Called with each error's text and whether it was logged, to count it where it is seen."""

    def __call__(self, what: str) -> GuardedBlock:
        """Return a context in which an exception ends nothing but its block."""
        return GuardedBlock(self, what)

    def take_microseconds(self) -> int:
        """Return how long our hooks took since the last call; what is left over is kept."""
        taken, self._nanoseconds = divmod(self._nanoseconds, 1000)
        return taken

    def enter(self) -> None:
        """Note that a block of ours begins."""
        if self._depth == 0:
            self._began = time.perf_counter_ns()
        self._depth += 1

    def leave(self) -> None:
        """Note that a block of ours ends. Blocks within blocks count once."""
        self._depth -= 1
        if self._depth == 0:
            self._nanoseconds += time.perf_counter_ns() - self._began

    def fault(self, what: str, error: Exception) -> None:
        """Count and log that `what` failed with `error`."""
        loud = self._faults.record(what, error)
        if self.tell is not None and self._faults.last is not None:
            # Telling may itself be what fails; it was logged above then.
            with contextlib.suppress(Exception):
                self.tell(self._faults.last, loud)


class GuardedBlock:
    """One block of our code inside a hook."""

    def __init__(self, guard: Guard, what: str) -> None:
        """`what` says in the log what was being done."""
        self._guard = guard
        self._what = what

    def __enter__(self) -> None:
        """Begin to measure."""
        self._guard.enter()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        """Swallow an Exception; let the interpreter's own ways to stop pass."""
        swallowed = isinstance(error, Exception)
        if isinstance(error, Exception):
            self._guard.fault(self._what, error)
        self._guard.leave()
        return swallowed
