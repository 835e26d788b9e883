"""How long work on a CUDA stream took, without waiting for it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

import torch

MOST_PENDING = 64
"""So many pieces of work are timed at a time; more that are queued meanwhile are not timed."""


class DeviceWatch:
    """Times pieces of work on one stream with pairs of events. Used by one thread."""

    def __init__(self) -> None:
        """Events are made when they are needed, and used again."""
        self._free: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Time what this block queues on the current stream."""
        if len(self._pending) >= MOST_PENDING:
            yield
            return
        pair = self._free.pop() if self._free else (_event(), _event())
        pair[0].record()
        yield
        pair[1].record()
        self._pending.append(pair)

    def take_microseconds(self) -> int:
        """Return what the pieces took that have finished and were not returned yet."""
        milliseconds = 0.0
        while self._pending and self._pending[0][1].query():
            began, ended = pair = self._pending.popleft()
            milliseconds += began.elapsed_time(ended)
            self._free.append(pair)
        return int(milliseconds * 1000)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
