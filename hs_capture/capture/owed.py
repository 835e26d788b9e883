"""Word for the writer that found no room in the ring yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hs_capture.capture.draft import Draft
from hs_capture.ring.message import Closed

OWED_DRAFTS = 4096
"""So many drafts wait whole."""
OWED_BYTES = 16 * 1024**2
"""So many bytes of token ids wait with them."""
OWED_ENDS = 200_000
"""Of so many more requests it waits that they ended, some 60 MB."""
ENDS_A_DRAFT = 128


class Owed:
    """Drafts without rows, in the order in which the writer must hear of them."""

    def __init__(self) -> None:
        """Nothing is owed."""
        self._drafts: deque[Draft] = deque()
        self._id_bytes = 0
        self._ends = 0
        self.opens: set[int] = set()
        """Keys of the requests that the drafts open."""

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def only_loses(self) -> bool:
        """Whether all that is owed are losses."""
        return all(draft.only_loses for draft in self._drafts)

    def first(self) -> Draft:
        """Return the draft that is told next."""
        return self._drafts[0]

    def pop(self) -> None:
        """Take that draft away."""
        draft = self._drafts.popleft()
        self._id_bytes -= draft.id_bytes
        self._ends -= draft.bare_ends
        self.opens.difference_update(request.key for request in draft.opened)

    def add_first(self, draft: Draft) -> None:
        """Have `draft` told before all others."""
        self._drafts.appendleft(draft)
        self._count(draft)

    def add(self, draft: Draft) -> bool:
        """Have `draft` told after the others. False if so much waits that it is not taken."""
        last = self._drafts[-1] if self._drafts else None
        if last is not None and last.only_loses and draft.only_loses:
            last.lose_more(draft)
            return True
        full = len(self._drafts) >= OWED_DRAFTS or self._id_bytes + draft.id_bytes > OWED_BYTES
        if self._ends or (full and self._drafts):
            return False
        self._drafts.append(draft)
        self._count(draft)
        return True

    def add_ends(self, ends: Sequence[Closed]) -> Sequence[Closed]:
        """Have it told that requests ended, without their tokens. Returns those not taken."""
        taken = ends[: max(0, OWED_ENDS - self._ends)]
        for closed in taken:
            if not self._drafts or not 0 < self._drafts[-1].bare_ends < ENDS_A_DRAFT:
                self._drafts.append(Draft())
            self._drafts[-1].end_bare(closed)
        self._ends += len(taken)
        return ends[len(taken) :]

    def _count(self, draft: Draft) -> None:
        self._id_bytes += draft.id_bytes
        self.opens.update(request.key for request in draft.opened)
