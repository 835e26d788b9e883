"""The content of one ring entry while it is put together."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    id_bytes: int = 0
    """Size of the token ids that travel with the opened requests."""
    lineage: dict[int, torch.Tensor] = field(default_factory=dict)
    """Lineage of the cached prefixes of opened requests, int64 [prefix, 2], by key in the order of
    `opened`."""
    lineage_bytes: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.opened or self.parts or self.lost or self.closed)

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
        rowless = Draft(lost=[*self.lost, *lost], closed=self.closed)
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
