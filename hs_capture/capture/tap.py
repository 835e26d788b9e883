"""Put the wanted rows of a forward pass into the ring."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from hs_capture.capture.batch import Batch, Request, Rows
from hs_capture.capture.copier import Copier
from hs_capture.capture.draft import Draft
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.owed import Owed
from hs_capture.capture.tally import Tally
from hs_capture.errors import ConfigError
from hs_capture.ring.message import Closed, Lost, Message, StreamSpec
from hs_capture.ring.producer import Producer, Slot

POLL_SECONDS = 0.001
SMALLEST_ENTRY_ROWS = 16
TOKEN_ID_BYTES = 8
MESSAGE_ROOM = 64 * 1024
"""Part of an entry's budget that is kept for its message."""
BOOKKEEPING_SHARE = 16
"""One part in this many of the ring is kept for messages without rows, so that a full ring still
takes word of what was dropped."""


@dataclass(frozen=True)
class Overload:
    """What to do while the ring is full."""

    block: bool
    timeout: float
    """Seconds to hold the server up before rows are dropped."""


class Tap:
    """Copies rows into the ring and tells the writer what they are. Used by one thread."""

    def __init__(
        self,
        producer: Producer,
        launcher: WriterLauncher,
        streams: Sequence[StreamSpec],
        copier: Copier,
        overload: Overload,
        longest_prompt: int,
    ) -> None:
        """Each batch will bring one tensor per stream, in the order of `streams`.

        `longest_prompt` is in tokens.

        Raises:
            ConfigError: the ring is too small for these streams or prompts.
        """
        self._producer = producer
        self._launcher = launcher
        self._streams = streams
        self._dtypes = [getattr(torch, stream.dtype) for stream in streams]
        self._row_bytes: int = sum(
            stream.width * dtype.itemsize
            for stream, dtype in zip(streams, self._dtypes, strict=True)
        )
        self._copier = copier
        largest = min(producer.largest_entry // 2, copier.largest_payload)
        self._budget = largest - MESSAGE_ROOM
        smallest = SMALLEST_ENTRY_ROWS * self._row_bytes + longest_prompt * TOKEN_ID_BYTES
        if self._budget < smallest:
            raise ConfigError(
                f"SGLANG_HS_BUFFER={producer.region.capacity} bytes are too few for rows of "
                f"{self._row_bytes} bytes and prompts of {longest_prompt} tokens; "
                f"give at least {4 * (smallest + MESSAGE_ROOM)}"
            )
        self._overload = overload
        self._kept = producer.region.capacity // BOOKKEEPING_SHARE
        self._tally = Tally(producer)
        self._dropping = False
        # How long the pass at hand may still hold the server up, in nanoseconds.
        self._patience = 0
        self._open: dict[int, Request] = {}
        self._done: set[int] = set()
        # Open requests whose opening is in the ring, with its position: see `_wake`.
        self._told: dict[int, tuple[int, Request]] = {}
        self._lost_before = 0
        self._owed = Owed()
        self.lineage: Mapping[int, torch.Tensor] = {}
        """Whose rows the cached prefixes of the requests that are new in the pass at hand are:
        int64 [prefix, 2] by key, see `capture.lineage`."""

    def capture(self, batch: Batch, tensors: Sequence[torch.Tensor]) -> None:
        """Take the wanted rows of `tensors`, one [rows, width] tensor per stream.

        Rows beyond `batch.total_rows` are padding. Returns when the rows are in the ring.

        Raises:
            ValueError: a tensor has another shape or dtype than its stream.
        """
        self._check(batch, tensors)
        self._begin_waiting()
        # Tensors that are being read are kept from being freed, else of any number of passes.
        self.protect()
        draft = Draft()
        for rows in self._unfinished(batch):
            draft = self._open_in(draft, rows.request, tensors)
            start = rows.start
            while start < rows.stop:
                room = self._room(draft)
                if room <= 0:
                    draft = self._send(draft, tensors)
                    continue
                stop = min(rows.stop, start + room)
                draft.add(rows if rows.stop - rows.start == stop - start else rows.cut(start, stop))
                start = stop
            self._close_in(draft, rows)
        self._send(draft, tensors)

    def protect(self) -> None:
        """Have the device read the tensors of the last batch before it does anything else.

        To be called before the next forward pass where that writes to the same memory, as with
        CUDA graphs.
        """
        self._copier.protect()

    def lose(self, batch: Batch, reason: str) -> None:
        """Record that the wanted rows of `batch` will never come."""
        self._begin_waiting()
        draft = Draft()
        for rows in self._unfinished(batch):
            draft = self._open_in(draft, rows.request, ())
            draft.lost.append(Lost(rows.request.key, rows.start, rows.stop, reason))
            self._close_in(draft, rows)
        self._send(draft, ())

    def finish(self, request: Request, generated: Sequence[int], reason: str | None) -> None:
        """Say that a request has ended, and which tokens it has `generated`.

        Nothing more is taken of it: overlap scheduling may have run its last token too.
        """
        if request.key in self._open:
            self._done.add(request.key)
            self._close_all([(request, generated)], reason)

    def forget(self, keys: Iterable[int]) -> None:
        """Say that these requests do not exist any more in the server."""
        gone = []
        for key in keys:
            self._done.discard(key)
            request = self._open.get(key)
            if request is not None:
                gone.append((request, request.generated or ()))
        self._close_all(gone, "aborted")

    def break_off(self, reason: str) -> None:
        """Close every open request for `reason`; nothing more is taken of them."""
        self._done.update(self._open)
        self._close_all([(r, r.generated or ()) for r in self._open.values()], reason)

    def _close_all(
        self, ended: Sequence[tuple[Request, Sequence[int]]], reason: str | None
    ) -> None:
        """Close requests that have generated these tokens, without holding the server up."""
        draft = Draft()
        for request, generated in ended:
            if self._room(draft) * self._row_bytes < len(generated) * TOKEN_ID_BYTES:
                draft = self._send(draft, (), waits=False)
            draft.close(request, generated, reason)
        self._send(draft, (), waits=False)

    def report(self, error: str) -> None:
        """Pass an error text of the server on to the status file."""
        message = Message(error=error).encode()
        slot = self._producer.reserve(len(message), 0)
        if slot is not None:
            self._publish(slot, Draft(), message)

    def _check(self, batch: Batch, tensors: Sequence[torch.Tensor]) -> None:
        for stream, dtype, tensor in zip(self._streams, self._dtypes, tensors, strict=True):
            rows, width = tensor.shape
            if rows < batch.total_rows or width != stream.width or tensor.dtype != dtype:
                raise ValueError(
                    f"{stream.name}: got {rows} x {width} {tensor.dtype}, expected at least "
                    f"{batch.total_rows} x {stream.width} {dtype}"
                )

    def _unfinished(self, batch: Batch) -> list[Rows]:
        """Return the rows of `batch` whose request is not complete yet.

        A request that SGLang retracts after its prefill is prefilled again: nothing of it is new.
        """
        return [rows for rows in batch.rows if rows.request.key not in self._done]

    def _room(self, draft: Draft) -> int:
        """Return how many more rows fit into the entry that `draft` becomes."""
        used = draft.rows * self._row_bytes + draft.id_bytes + draft.lineage_bytes
        return (self._budget - used) // self._row_bytes

    def _open_in(self, draft: Draft, request: Request, tensors: Sequence[torch.Tensor]) -> Draft:
        """Open `request` in `draft`, or in the next one where its token ids do not fit."""
        if request.key in self._open:
            return draft
        lineage = self.lineage.get(request.key) if tensors else None
        needed = request.input_ids.nbytes + (0 if lineage is None else lineage.nbytes)
        if self._room(draft) * self._row_bytes < needed:
            draft = self._send(draft, tensors)
            if self._room(draft) * self._row_bytes < needed:
                # The ring is small. The capture is incomplete, as it would be without lineage.
                lineage = None
        draft.open(request, lineage)
        return draft

    def _close_in(self, draft: Draft, rows: Rows) -> None:
        if rows.last:
            request = rows.request
            draft.closed.append(Closed(request.key, request.rid, request.num_tokens))

    def _begin_waiting(self) -> None:
        self._patience = round(1e9 * self._overload.timeout) if self._overload.block else 0

    def _send(self, draft: Draft, tensors: Sequence[torch.Tensor], *, waits: bool = True) -> Draft:
        """Publish `draft` and return an empty one to go on with.

        Rows that find no room in time are dropped; word of them always goes out, later if need be.
        Without `waits` a draft without rows is owed at once where there is no room.
        """
        if draft.empty:
            self._pay_owed()
            return Draft()
        message = draft.message().encode()
        payload = draft.rows * self._row_bytes + draft.id_bytes + draft.lineage_bytes
        # A dead writer is best noticed before these rows are on their way: what they belong to can
        # still be opened anew.
        self._wake()
        slot = self._reserve(len(message), payload, waits=waits)
        if slot is not None:
            if draft.rows or draft.lineage:
                began = time.perf_counter_ns()
                at = payload - draft.lineage_bytes
                self._copier.copy(slot, draft.parts, tensors, list(draft.lineage.values()), at)
                self._tally.taken(draft.rows, draft.rows * self._row_bytes, began)
            self._fill_ids(slot.payload, draft)
            self._remember(draft)
            self._publish(slot, draft, message)
            self._pay_owed()
            return Draft()
        self._tally.dropped(draft.rows)
        self._remember(draft)
        self._owe(draft.without_rows("dropped"))
        self._pay_owed()
        return Draft()

    def _remember(self, draft: Draft) -> None:
        """Follow what the writer knows, or will know, after `draft`."""
        for request in draft.opened:
            self._open[request.key] = request
        for closed in draft.closed:
            self._open.pop(closed.key, None)
            if closed.reason is None:
                self._done.add(closed.key)

    def _owe(self, draft: Draft) -> None:
        """Keep word for the writer until there is room for it.

        Past a limit its requests end here: all that waits then is that they were dropped.
        """
        if not self._owed.add(draft):
            for closed in self._owed.add_ends(self._end_all(draft)):
                self._leave_untold(closed)

    def _end_all(self, draft: Draft) -> list[Closed]:
        """Take nothing more of the requests that `draft` tells of; return their ends."""
        ends = draft.ends_instead(self._open, "dropped")
        for closed in ends:
            if self._open.pop(closed.key, None) is not None:
                self._done.add(closed.key)
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
            if request.key in self._open:
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
