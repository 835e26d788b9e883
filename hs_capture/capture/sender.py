"""Get drafts into the ring, in the order in which the writer must hear of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hs_capture.capture.batch import Request
from hs_capture.capture.copier import Copier
from hs_capture.capture.draft import Draft
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.owed import Owed
from hs_capture.capture.tally import Tally
from hs_capture.ring.message import Closed, Lost, Message
from hs_capture.ring.producer import Producer, Slot

POLL_SECONDS = 0.001
BOOKKEEPING_SHARE = 16
"""One part in this many of the ring is kept for messages without rows, so that a full ring still
takes word of what was dropped."""


@dataclass(frozen=True)
class Overload:
    """What to do while the ring is full."""

    block: bool
    timeout: float
    """Seconds to hold the server up before rows are dropped."""


class Sender:
    """Puts drafts into the ring; rows without room are dropped, word of them is owed.

    Used by one thread.
    """

    def __init__(
        self,
        producer: Producer,
        launcher: WriterLauncher,
        copier: Copier,
        overload: Overload,
        row_bytes: int,
    ) -> None:
        """A row of all streams together has `row_bytes` bytes."""
        self._producer = producer
        self._launcher = launcher
        self._copier = copier
        self._overload = overload
        self._row_bytes = row_bytes
        self._kept = producer.region.capacity // BOOKKEEPING_SHARE
        self._tally = Tally(producer)
        self._dropping = False
        # How long the pass at hand may still hold the server up, in nanoseconds.
        self._patience = 0
        self.open: dict[int, Request] = {}
        """Requests that the writer knows, or will know, by key."""
        self.over: set[int] = set()
        """Keys of requests of which nothing more is taken."""
        # Open requests whose opening is in the ring, with its position: see `_wake`.
        self._told: dict[int, tuple[int, Request]] = {}
        self._lost_before = 0
        self._owed = Owed()

    def begin_pass(self) -> None:
        """Let what is sent from now on hold the server up for the whole time-out, if at all."""
        self._patience = round(1e9 * self._overload.timeout) if self._overload.block else 0

    def send(self, draft: Draft, tensors: Sequence[torch.Tensor], *, waits: bool = True) -> None:
        """Publish `draft`, with its rows of `tensors`, one [rows, width] tensor per stream.

        Rows that find no room in time are dropped; word of them always goes out, later if need be.
        Without `waits` a draft without rows is owed at once where there is no room.
        """
        if draft.empty:
            self._pay_owed()
            return
        message = draft.message().encode()
        payload = draft.rows * self._row_bytes + draft.id_bytes + draft.lineage_bytes
        # A dead writer is best noticed before these rows are on their way: what they belong to can
        # still be opened anew.
        self._wake()
        slot = self._reserve(len(message), payload, waits=waits)
        if slot is None:
            self._tally.dropped(draft.rows)
            self._remember(draft)
            self._owe(draft.without_rows("dropped"))
        else:
            self._copy(slot, draft, tensors, payload - draft.lineage_bytes)
            self._fill_ids(slot.payload, draft)
            self._remember(draft)
            self._publish(slot, draft, message)
        self._pay_owed()

    def report(self, error: str) -> None:
        """Pass an error text of the server on to the status file."""
        message = Message(error=error).encode()
        slot = self._producer.reserve(len(message), 0)
        if slot is not None:
            self._publish(slot, Draft(), message)

    def _remember(self, draft: Draft) -> None:
        """Follow what the writer knows, or will know, after `draft`."""
        for request in draft.opened:
            self.open[request.key] = request
        for closed in draft.closed:
            self.open.pop(closed.key, None)
            if closed.reason is None:
                self.over.add(closed.key)

    def _owe(self, draft: Draft) -> None:
        """Keep word for the writer until there is room for it.

        Past a limit its requests end here: all that waits then is that they were dropped.
        """
        if not self._owed.add(draft):
            for closed in self._owed.add_ends(self._end_all(draft)):
                self._leave_untold(closed)

    def _end_all(self, draft: Draft) -> list[Closed]:
        """Take nothing more of the requests that `draft` tells of; return their ends."""
        ends = draft.ends_instead(self.open, "dropped")
        for closed in ends:
            if self.open.pop(closed.key, None) is not None:
                self.over.add(closed.key)
        return ends

    def _leave_untold(self, closed: Closed) -> None:
        # Of one that it knows, or is about to know, the writer tells when it has had no news for
        # long.
        if self._told.pop(closed.key, None) is None and closed.key not in self._owed.opens:
            self._producer.count("requests_untold")

    def _pay_owed(self) -> None:
        """Publish what is owed, as far as there is room in the share kept for it.

        Losses alone wait for room in the rest of the ring: of requests that generate they come with
        every token, and the share is for the ends of requests, which nothing may follow for long.
        """
        if self._owed.only_loses and self._producer.free <= self._kept:
            return
        while self._owed:
            draft = self._owed.first()
            message = draft.message().encode()
            if not self._producer.fits(len(message), draft.id_bytes):
                self._owed.pop()
                for closed in self._end_all(draft):
                    self._leave_untold(closed)
                continue
            slot = self._producer.reserve(len(message), draft.id_bytes)
            if slot is None:
                return
            self._fill_ids(slot.payload, draft)
            self._owed.pop()
            self._publish(slot, draft, message)

    def _reserve(self, message: int, payload: int, *, waits: bool) -> Slot | None:
        """Find room; while there is none, do what the user chose for that case.

        What is owed goes first: the writer must hear of things in their order. A pass that is more
        than one entry waits no longer than one that is a single one.
        """
        if payload + message + self._kept > self._producer.largest_entry:
            return None
        if self._dropping and self._producer.free < self._producer.region.capacity // 2:
            return None
        self._dropping = False
        until = time.perf_counter_ns()
        while True:
            self._pay_owed()
            if not self._owed and payload + message + self._kept <= self._producer.free:
                slot = self._producer.reserve(message, payload)
                if slot is not None:
                    return slot
            if not waits:
                return None
            if self._patience <= 0:
                self._dropping = self._overload.block
                return None
            self._wake()
            time.sleep(POLL_SECONDS)
            began, until = until, self._tally.blocked(until)
            self._patience -= until - began

    def _copy(self, slot: Slot, draft: Draft, tensors: Sequence[torch.Tensor], at: int) -> None:
        """Copy the rows to the start of the payload, and the lineages to byte `at` of it."""
        if draft.rows or draft.lineage:
            began = time.perf_counter_ns()
            self._copier.copy(slot, draft.parts, tensors, list(draft.lineage.values()), at)
            self._tally.taken(draft.rows, draft.rows * self._row_bytes, began)

    def _fill_ids(self, payload: memoryview, draft: Draft) -> None:
        """Put the token ids of the opened and closed requests behind the rows."""
        if draft.id_bytes:
            ids = draft.token_ids()
            offset = draft.rows * self._row_bytes
            payload[offset : offset + ids.nbytes] = ids.data.cast("B")

    def _publish(self, slot: Slot, draft: Draft, message: bytes) -> None:
        copied = draft.rows > 0 or bool(draft.lineage)
        arrives_later = copied and self._copier.finishes_later
        self._producer.publish(slot, message, ready=not arrives_later)
        for request in draft.opened:
            # Of one that ended meanwhile the writer hears in this draft, soon, or never.
            if request.key in self.open:
                self._told[request.key] = (slot.position, request)
        for closed in draft.closed:
            self._told.pop(closed.key, None)
        self._wake()

    def _wake(self) -> None:
        """Wake the writer, and open anew what only a writer that died knew.

        The next writer reads what the dead one had not released. A request that was opened before
        and is not closed yet is opened again, before anything else that is owed; the rows that
        the dead writer had of it are lost.
        """
        self._launcher.wake()
        lost_before = self._launcher.lost_before
        if lost_before == self._lost_before:
            return
        self._lost_before = lost_before
        for key, (position, request) in list(self._told.items()):
            if position < lost_before:
                del self._told[key]
                lost = Lost(key, 0, request.num_tokens, "writer_died")
                again = Draft(lost=[lost])
                again.open(request)
                self._owed.add_first(again)
