"""Nothing of ours may raise into a serving SGLang."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from hs_capture.faults import FaultLog

logger = logging.getLogger("hs_capture")


class Guard:
    """Catches, counts and logs what goes wrong in our hooks."""

    def __init__(self) -> None:
        """Errors are only logged until `tell` is set."""
        self._faults = FaultLog(logger)
        self.tell: Callable[[str, bool], None] | None = None
        """Called with each error's text and whether it was logged, to count it where it is seen."""

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Run a block in which an exception ends nothing but the block."""
        try:
            yield
        except Exception as error:
            self.fault(what, error)

    def fault(self, what: str, error: Exception) -> None:
        """Count and log that `what` failed with `error`."""
        loud = self._faults.record(what, error)
        if self.tell is not None and self._faults.last is not None:
            # Telling may itself be what fails; it was logged above then.
            with contextlib.suppress(Exception):
                self.tell(self._faults.last, loud)
