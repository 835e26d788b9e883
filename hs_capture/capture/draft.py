"""The content of one ring entry while it is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from hs_capture.capture.batch import Request, Rows
from hs_capture.ring.message import Closed, Lost, Message, Opened, Segment


@dataclass
class Draft:
    """Requests to open, rows to copy, losses and closes to tell, in this order."""

    opened: list[Request] = field(default_factory=list)
    parts: list[Rows] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    rows: int = 0
    ends: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """The generated tokens of the requests to close, in their order."""
    id_bytes: int = 0
    """Size of the token ids that travel with the opened and closed requests."""
    lineage: dict[int, torch.Tensor] = field(default_factory=dict)
    """Lineage of the cached prefixes of opened requests, int64 [prefix, 2], by key in the order of
    `opened`."""
    lineage_bytes: int = 0
    bare_ends: int = 0
    """How many requests are closed of which nothing else is told; others are not in the draft."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.opened or self.parts or self.lost or self.closed)

    @property
    def only_loses(self) -> bool:
        """Whether all that there is to tell are losses."""
        return bool(self.lost) and not (self.opened or self.parts or self.closed)

    def lose_more(self, later: Draft) -> None:
        """Add the losses of `later`. Those that go on where earlier ones stop become one."""
        last = {lost.key: lost for lost in self.lost}
        for lost in later.lost:
            before = last.get(lost.key)
            if before is not None and (before.stop, before.reason) == (lost.start, lost.reason):
                before.stop = lost.stop
            else:
                self.lost.append(lost)

    def add(self, rows: Rows) -> None:
        """Add `rows` of the batch."""
        self.parts.append(rows)
        self.rows += rows.stop - rows.start

    def open(self, request: Request, lineage: torch.Tensor | None = None) -> None:
        """Add a request that the writer does not know yet, with the lineage of its prefix."""
        self.opened.append(request)
        self.id_bytes += request.input_ids.nbytes
        if lineage is not None:
            self.lineage[request.key] = lineage
            self.lineage_bytes += lineage.nbytes

    def close(self, request: Request, generated: Sequence[int], reason: str | None = None) -> None:
        """Add the end of a request that has `generated` these tokens.

        The last of them ends the answer and is not one of the record's, whether it ran or not.
        """
        ids = np.array(generated, dtype=np.int64)
        total = request.num_tokens + len(ids[:-1])
        self.closed.append(Closed(request.key, request.rid, total, reason, len(ids)))
        self.ends.append(ids)
        self.id_bytes += ids.nbytes

    def end_bare(self, closed: Closed) -> None:
        """Add the end of a request of which nothing else is told."""
        self.closed.append(closed)
        self.bare_ends += 1

    def ends_instead(self, known: Mapping[int, Request], reason: str) -> list[Closed]:
        """Return the ends, for `reason`, of all requests that the draft tells of.

        Those that it neither opens nor closes are looked up in `known`, by key.
        """
        lost = (known[lost.key] for lost in self.lost if lost.key in known)
        ends = {r.key: Closed(r.key, r.rid, r.num_tokens, reason) for r in (*lost, *self.opened)}
        for closed in self.closed:
            ends[closed.key] = Closed(closed.key, closed.rid, closed.num_tokens, reason)
        return list(ends.values())

    def token_ids(self) -> npt.NDArray[np.int64]:
        """Return the token ids that travel with the draft, those of opened requests first."""
        opened = [request.input_ids for request in self.opened]
        return np.concatenate([*opened, *self.ends, np.empty(0, np.int64)])

    def message(self) -> Message:
        """Return the draft as the message that the writer reads."""
        segments = []
        row = 0
        for part in self.parts:
            segments.append(Segment(part.request.key, part.start, part.stop, row))
            row += part.stop - part.start
        return Message(
            opened=[self._opened(request) for request in self.opened],
            rows=self.rows,
            segments=segments,
            lost=self.lost,
            closed=self.closed,
        )

    def without_rows(self, reason: str) -> Draft:
        """Return the draft with its rows given up for `reason`, and the lineages with them."""
        lost = [Lost(part.request.key, part.start, part.stop, reason) for part in self.parts]
        rowless = Draft(lost=[*self.lost, *lost], closed=self.closed, ends=self.ends)
        rowless.id_bytes = sum(ids.nbytes for ids in self.ends)
        for request in self.opened:
            rowless.open(request)
        return rowless

    def _opened(self, request: Request) -> Opened:
        lineage = self.lineage.get(request.key)
        return Opened(
            request.key,
            request.rid,
            request.num_tokens,
            request.cached_tokens,
            request.weights_version,
            request.lora,
            0 if lineage is None else len(lineage),
        )
