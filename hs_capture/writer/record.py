"""One request on its way to a file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hs_capture.format.container import ContainerWriter
from hs_capture.format.links import Link
from hs_capture.intervals import Interval, length, subtract, union
from hs_capture.ring.consumer import Entry
from hs_capture.ring.message import Lost, Opened
from hs_capture.writer.generation import Generation


@dataclass
class Record:
    """The captured rows of one request so far. Only the assembler changes it, under its lock."""

    request: Opened
    container: ContainerWriter
    generation: Generation | None = None
    """What it generates, where that is followed."""
    generated: Sequence[int] = ()
    """The generated tokens whose rows belong to it, once it is closing."""
    behind: Sequence[int] = ()
    """The token that ended the answer, if it ran: the next turn of a chat may have its row."""
    certain: int | None = None
    """Where the first row is, if any, that ran as another token than that of the request."""
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
        """Token positions that were not captured."""
        return subtract((0, self.num_tokens), self.covered)

    @property
    def num_tokens(self) -> int:
        """Length of the prompt, and of what was generated once it is closing."""
        return self.request.num_tokens + len(self.generated)

    @property
    def file_rows(self) -> int:
        """Length of each stream of the file, once it is closing."""
        return self.num_tokens + len(self.behind)

    @property
    def prompt_tokens(self) -> int | None:
        """Length of the prompt, None where nothing else is followed."""
        return None if self.generation is None else self.request.num_tokens

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
        if self.generation is None:
            stop = min(stop, self.request.num_tokens)
        if self.covered and self.covered[-1][1] == start < stop:
            # As nearly always, above all where each token comes by itself.
            self.covered[-1] = (self.covered[-1][0], stop)
            return [(start, stop)]
        new = subtract((start, stop), self.covered)
        self.covered = union([*self.covered, *new])
        return new

    def lose(self, lost: Lost) -> None:
        """Note that positions will not come."""
        last = self.losses[-1] if self.losses else None
        if last is not None and (last.reason, last.stop) == (lost.reason, lost.start):
            # Of a request that generates, each token is a loss of its own.
            last.stop = lost.stop
        else:
            self.losses.append(lost)

    def end(self, generated: Sequence[int], last: Sequence[int] = ()) -> None:
        """Fix the tokens: the prompt, these `generated` ones and, if its row came, the `last`.

        What is beyond is not of them.
        """
        self.generated = generated
        stop = self.num_tokens
        self.behind = last if any(a <= stop < b for a, b in self.covered) else ()
        self.covered = [(a, min(b, stop)) for a, b in self.covered if a < stop]

    def take_back(self, gone: Iterable[Interval], reason: str) -> None:
        """Count these positions as not captured, for `reason`."""
        for start, stop in gone:
            self.covered = [
                left for interval in self.covered for left in subtract(interval, [(start, stop)])
            ]
            self.losses.insert(0, Lost(self.request.key, start, stop, reason))

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
        in_cache = missing[-1][1] <= self.request.cached_tokens
        if self.end_reason is not None and not (in_cache and self.generation):
            return self.end_reason
        return "prefix_cache" if in_cache else "unknown"
