"""The content of one ring entry while it is put together."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.opened or self.parts or self.lost or self.closed)

    @property
    def id_bytes(self) -> int:
        """Size of the token ids that travel with the opened requests."""
        return sum(request.input_ids.nbytes for request in self.opened)

    def message(self) -> Message:
        """Return the draft as the message that the writer reads."""
        segments = []
        row = 0
        for part in self.parts:
            segments.append(Segment(part.request.key, part.start, part.stop, row))
            row += part.stop - part.start
        return Message(
            opened=[Opened(r.key, r.rid, r.num_tokens, r.cached_tokens) for r in self.opened],
            rows=self.rows,
            segments=segments,
            lost=self.lost,
            closed=self.closed,
        )

    def without_rows(self, reason: str) -> Draft:
        """Return the draft with its rows given up for `reason`."""
        lost = [Lost(part.request.key, part.start, part.stop, reason) for part in self.parts]
        return Draft(opened=self.opened, lost=[*self.lost, *lost], closed=self.closed)
