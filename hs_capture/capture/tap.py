"""Put the wanted rows of a forward pass into the ring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from hs_capture.capture.batch import Batch, Request, Rows
from hs_capture.capture.copier import Copier
from hs_capture.capture.draft import Draft
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.sender import Overload, Sender
from hs_capture.errors import ConfigError
from hs_capture.ring.message import Closed, Lost, StreamSpec
from hs_capture.ring.producer import Producer

SMALLEST_ENTRY_ROWS = 16
TOKEN_ID_BYTES = 8
MESSAGE_ROOM = 64 * 1024
"""Part of an entry's budget that is kept for its message."""


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
        self._sender = Sender(producer, launcher, copier, overload, self._row_bytes)
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
        self._sender.begin_pass()
        # Tensors that are being read are kept from being freed, else of any number of passes.
        self.protect()
        draft = Draft()
        for rows in self._unfinished(batch):
            draft = self._open_in(draft, rows.request, tensors)
            draft = self._add(draft, rows, tensors)
            self._close_in(draft, rows)
        self._sender.send(draft, tensors)

    def protect(self) -> None:
        """Have the device read the tensors of the last batch before it does anything else.

        To be called before the next forward pass where that writes to the same memory, as with
        CUDA graphs.
        """
        self._copier.protect()

    def lose(self, batch: Batch, reason: str) -> None:
        """Record that the wanted rows of `batch` will never come."""
        self._sender.begin_pass()
        draft = Draft()
        for rows in self._unfinished(batch):
            draft = self._open_in(draft, rows.request, ())
            draft.lost.append(Lost(rows.request.key, rows.start, rows.stop, reason))
            self._close_in(draft, rows)
        self._sender.send(draft, ())

    def finish(self, request: Request, generated: Sequence[int], reason: str | None) -> None:
        """Say that a request has ended, and which tokens it has `generated`.

        Nothing more is taken of it: overlap scheduling may have run its last token too.
        """
        if request.key in self._sender.open:
            self._sender.over.add(request.key)
            self._close_all([(request, generated)], reason)

    def forget(self, keys: Iterable[int]) -> None:
        """Say that these requests do not exist any more in the server."""
        gone = []
        for key in keys:
            self._sender.over.discard(key)
            request = self._sender.open.get(key)
            if request is not None:
                gone.append((request, request.generated or ()))
        self._close_all(gone, "aborted")

    def break_off(self, reason: str) -> None:
        """Close every open request for `reason`; nothing more is taken of them."""
        self._sender.over.update(self._sender.open)
        self._close_all([(r, r.generated or ()) for r in self._sender.open.values()], reason)

    def report(self, error: str) -> None:
        """Pass an error text of the server on to the status file."""
        self._sender.report(error)

    def _close_all(
        self, ended: Sequence[tuple[Request, Sequence[int]]], reason: str | None
    ) -> None:
        """Close requests that have generated these tokens, without holding the server up."""
        draft = Draft()
        for request, generated in ended:
            if self._room(draft) * self._row_bytes < len(generated) * TOKEN_ID_BYTES:
                self._sender.send(draft, (), waits=False)
                draft = Draft()
            draft.close(request, generated, reason)
        self._sender.send(draft, (), waits=False)

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
        return [rows for rows in batch.rows if rows.request.key not in self._sender.over]

    def _room(self, draft: Draft) -> int:
        """Return how many more rows fit into the entry that `draft` becomes."""
        used = draft.rows * self._row_bytes + draft.id_bytes + draft.lineage_bytes
        return (self._budget - used) // self._row_bytes

    def _open_in(self, draft: Draft, request: Request, tensors: Sequence[torch.Tensor]) -> Draft:
        """Open `request` in `draft`, or in the next one where its token ids do not fit."""
        if request.key in self._sender.open:
            return draft
        lineage = self.lineage.get(request.key) if tensors else None
        needed = request.input_ids.nbytes + (0 if lineage is None else lineage.nbytes)
        if self._room(draft) * self._row_bytes < needed:
            self._sender.send(draft, tensors)
            draft = Draft()
            if self._room(draft) * self._row_bytes < needed:
                # The ring is small. The capture is incomplete, as it would be without lineage.
                lineage = None
        draft.open(request, lineage)
        return draft

    def _add(self, draft: Draft, rows: Rows, tensors: Sequence[torch.Tensor]) -> Draft:
        """Add `rows` to `draft`, and what does not fit to others; return the last of them.

        Where a part could not even be kept in mind, the request is over with it.
        """
        start = rows.start
        while start < rows.stop and rows.request.key not in self._sender.over:
            room = self._room(draft)
            if room <= 0:
                self._sender.send(draft, tensors)
                draft = Draft()
                continue
            stop = min(rows.stop, start + room)
            draft.add(rows if rows.stop - rows.start == stop - start else rows.cut(start, stop))
            start = stop
        return draft

    def _close_in(self, draft: Draft, rows: Rows) -> None:
        request = rows.request
        if rows.last and request.key not in self._sender.over:
            draft.closed.append(Closed(request.key, request.rid, request.num_tokens))
