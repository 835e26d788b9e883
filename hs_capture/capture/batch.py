"""Whose rows a forward pass computes, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Request:
    """One request. `key` is unique in this process; `rid` is what the client sent."""

    key: int
    rid: str
    input_ids: npt.NDArray[np.int64]
    """Token ids of the prompt, int64 [T]."""
    cached_tokens: int
    """How many of them SGLang took from its prefix cache."""
    weights_version: int = 0
    """How often the weights had been changed when it came."""
    mixes_weights: bool = False
    """Whether its rows may come in part from weights of another version."""
    lora: str | None = None
    """Name of the LoRA adapter that it runs with."""
    generated: Sequence[int] | None = None
    """The tokens that it has generated so far: SGLang's own list, which grows. None where their
    rows are not wanted."""

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.input_ids)

    @property
    def generates(self) -> bool:
        """Whether the rows of its generated tokens are wanted too."""
        return self.generated is not None


@dataclass
class Rows:
    """Positions [start, stop) of `request`; they lie from row `row` of the batch on.

    Not frozen, for the sake of speed; see ``ring.message``. Nobody changes them.
    """

    request: Request
    start: int
    stop: int
    row: int

    @property
    def last(self) -> bool:
        """Whether nothing is wanted of the request behind these rows, the last of its prompt."""
        return self.stop == self.request.num_tokens and not self.request.generates

    def cut(self, start: int, stop: int) -> Rows:
        """Return positions [start, stop) of them."""
        return Rows(self.request, start, stop, self.row + start - self.start)


@dataclass(frozen=True)
class CachedPrefix:
    """The first `length` tokens of `request`, which the server had in its prefix cache."""

    request: Request
    place: int
    """Which request of the batch it is."""
    length: int


@dataclass(frozen=True)
class Batch:
    """The wanted rows of one forward pass, in batch order."""

    rows: tuple[Rows, ...]
    total_rows: int
    """Rows of all requests together, wanted or not; a tensor may have padding beyond them."""
    prefixes: tuple[CachedPrefix, ...] = ()
    """What the requests that are new in this pass had in the cache."""

    def divided(self, by: Callable[[Rows], bool]) -> tuple[Batch, Batch]:
        """Return the batch without the rows for which `by` is true, and with them alone."""
        chosen = tuple(rows for rows in self.rows if by(rows))
        others = tuple(rows for rows in self.rows if not by(rows))
        return replace(self, rows=others), replace(self, rows=chosen)


def batch_of(extents: Iterable[tuple[Request | None, int, int]]) -> Batch:
    """Return the batch of requests given as (request, prefix length, extend length) in row order.

    A request is None when none of its rows is wanted. Positions beyond a prompt's end are
    generated tokens, which a decode step or a retracted request computes; they are left out of a
    request that does not want them.
    """
    rows: list[Rows] = []
    row = 0
    for request, prefix, extend in extents:
        if request is not None:
            stop = prefix + extend
            if not request.generates:
                stop = min(stop, request.num_tokens)
            if prefix < stop:
                rows.append(Rows(request, prefix, stop, row))
        row += extend
    return Batch(tuple(rows), row)
