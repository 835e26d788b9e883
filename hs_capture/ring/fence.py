"""Keep the order in which memory is read and written, where the processor need not."""

from __future__ import annotations

import threading


class Fence:
    """What a thread reads and writes before `order` happens before what it does afterwards.

    Processors of the aarch64 family may otherwise show it to others in another order (Arm
    Architecture Reference Manual, "Load-Acquire, Store-Release"). Python has no fence, but its
    locks are made of the two halves of one. What stands before a release stays before it, what
    stands behind a taking stays behind it, and no taking passes a release that stands before it:
    so a release and then a taking are a fence. A lock that is taken and released once is none,
    as both sides may move into it.
    """

    def __init__(self) -> None:
        """For one thread, so that nobody ever waits."""
        self._lock = threading.Lock()

    def order(self) -> None:
        """See the class."""
        with self._lock:
            pass
        with self._lock:
            pass
