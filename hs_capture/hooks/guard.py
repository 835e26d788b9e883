"""Nothing of ours may raise into a serving SGLang."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from types import TracebackType

from hs_capture.faults import FaultLog

logger = logging.getLogger("hs_capture")


class Guard:
    """Catches, counts and logs what goes wrong in our hooks."""

    def __init__(self) -> None:
        """Errors are only logged until `tell` is set."""
        self._faults = FaultLog(logger)
        self.tell: Callable[[str, bool], None] | None = None
        """Called with each error's text and whether it was logged, to count it where it is seen."""

    def __call__(self, what: str) -> GuardedBlock:
        """Return a context in which an exception ends nothing but its block."""
        return GuardedBlock(self, what)

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
        """Nothing to prepare."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        """Swallow an Exception; let the interpreter's own ways to stop pass."""
        if not isinstance(error, Exception):
            return False
        self._guard.fault(self._what, error)
        return True
