"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Have Ctrl-C work in the processes that tests start.

    A shell that starts the tests in the background has it ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
