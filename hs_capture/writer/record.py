"""One request on its way to a file."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hs_capture.format.container import ContainerWriter
from hs_capture.format.links import Link
from hs_capture.intervals import Interval, length, subtract, union
from hs_capture.ring.consumer import Entry
from hs_capture.ring.message import Lost, Opened


@dataclass
class Record:
    """The captured rows of one request so far. Only the assembler changes it, under its lock."""

    request: Opened
    container: ContainerWriter
    covered: list[Interval] = field(default_factory=list)
    losses: list[Lost] = field(default_factory=list)
    last_news: float = field(default_factory=time.monotonic)
    """When it was opened, or rows of it came last."""
    pending: int = 0
    """Blocks that are still being compressed or written."""
    closing: bool = False
    settled: bool = False
    """Whether it was handed to the publisher."""
    end_reason: str | None = None
    closing_entry: Entry | None = None
    """The entry of the ring that closed this record."""
    origins: tuple[Link, ...] = ()
    """Whose rows those of its cached prefix are."""
    failure: str | None = None
    """Why this record cannot become a file at all (an error while it was written)."""

    @property
    def path(self) -> str:
        """The unfinished file."""
        return self.container.path

    @property
    def missing(self) -> list[Interval]:
        """Token positions of the prompt that were not captured."""
        return subtract((0, self.request.num_tokens), self.covered)

    @property
    def links(self) -> tuple[Link, ...]:
        """Whose rows those that were not captured are."""
        missing = self.missing
        return tuple(
            (max(a, start), min(b, stop), key)
            for start, stop, key in self.origins
            for a, b in missing
            if a < stop and start < b
        )

    @property
    def rows(self) -> int:
        """How many token positions were captured."""
        return length(self.covered)

    def take(self, start: int, stop: int) -> list[Interval]:
        """Claim the positions of [start, stop) that are new; the first capture of a row stays.

        A request that SGLang retracts is prefilled again, from the same weights and tokens: those
        rows are there already. Positions from the prompt's end on are generated tokens.
        """
        self.last_news = time.monotonic()
        new = subtract((start, min(stop, self.request.num_tokens)), self.covered)
        self.covered = union([*self.covered, *new])
        return new

    @property
    def incomplete_reason(self) -> str | None:
        """Why positions are missing; None when none is.

        A known loss comes first, then the way the request ended. What is missing besides was
        never computed for this request: SGLang had it in its prefix cache.
        """
        missing = self.missing
        if not missing:
            return None
        for loss in self.losses:
            if any(start < loss.stop and loss.start < stop for start, stop in missing):
                return loss.reason
        if self.end_reason is not None:
            return self.end_reason
        in_cache = missing[-1][1] <= self.request.cached_tokens
        return "prefix_cache" if in_cache else "unknown"
