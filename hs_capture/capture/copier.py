"""Copy rows into the payload of a ring entry: plainly on a CPU, without waiting on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from hs_capture.capture.batch import Rows
from hs_capture.errors import ConfigError
from hs_capture.ring.layout import PAGE, EntryWord
from hs_capture.ring.producer import Producer, Slot

STAGING_BYTES = 128 * 1024**2
"""Device memory for rows on their way into the ring."""


class Copier(Protocol):
    """Fills payloads. For each tensor the rows of all parts come back to back."""

    splits_planes: bool
    """Whether the bytes of a tensor's elements come one plane after the other (all first bytes,
    then all second bytes, ...) instead of element by element."""
    finishes_later: bool
    """Whether the rows arrive after `copy` has returned; the entry's ready word then says when."""

    largest_payload: int
    """Bytes that one `copy` takes at the most."""

    def copy(
        self,
        slot: Slot,
        parts: Sequence[Rows],
        tensors: Sequence[torch.Tensor],
        whole: Sequence[torch.Tensor] = (),
        at: int = 0,
    ) -> None:
        """Copy `parts` of each of `tensors` to the start of the payload of `slot`.

        The tensors `whole` are copied as they are, back to back, from byte `at` of it on.
        """

    def protect(self) -> None:
        """Have the device read the tensors of the last `copy` before it does anything else.

        To be called before a forward pass that may write to the same memory, and before the copies
        of the next one: so the tensors of no more than three passes wait to be freed, where the
        server's thread is one pass ahead of the device.
        """


class HostCopier:
    """For a server without a GPU: plain copies that are done when `copy` returns."""

    splits_planes = False
    finishes_later = False

    def __init__(self, producer: Producer) -> None:
        """A payload may fill the largest entry."""
        self.largest_payload = producer.largest_entry

    def copy(
        self,
        slot: Slot,
        parts: Sequence[Rows],
        tensors: Sequence[torch.Tensor],
        whole: Sequence[torch.Tensor] = (),
        at: int = 0,
    ) -> None:
        """See `Copier.copy`."""
        copies = list(runs(parts))
        rows = sum(count for _, _, count in copies)
        offset = 0
        for tensor in tensors if rows else ():
            size = rows * tensor.shape[-1] * tensor.itemsize
            payload = torch.frombuffer(slot.payload[offset : offset + size], dtype=tensor.dtype)
            target = payload.view(rows, -1)
            for row, source, count in copies:
                target[row : row + count].copy_(tensor[source : source + count])
            offset += size
        for tensor in whole:
            slot.payload[at : at + tensor.nbytes] = tensor.contiguous().numpy().data.cast("B")
            at += tensor.nbytes

    def protect(self) -> None:
        """Nothing is left to read when `copy` has returned."""


class DeviceCopier:
    """For a server on a GPU.

    The planes are split on the device, on a stream of their own, and copied from there into the
    ring, which is registered as pinned memory. Neither the server's stream nor its thread waits.
    """

    splits_planes = True
    finishes_later = True

    def __init__(self, producer: Producer, device: torch.device) -> None:
        """Pin the ring and take `largest_payload` bytes of device memory.

        All that a copy takes besides is 16 bytes for each token of a cached prefix (`whole`).

        Raises:
            ConfigError: the ring cannot be registered with CUDA.
        """
        self._ring = torch.frombuffer(producer.region.map, dtype=torch.uint8)
        self._capacity = producer.region.capacity
        code = torch.cuda.cudart().cudaHostRegister(self._ring.data_ptr(), self._ring.numel(), 0)
        if int(code) != 0:
            raise ConfigError(
                f"SGLANG_HS_BUFFER: CUDA cannot register the ring of {self._capacity} bytes as "
                f"pinned memory (cudaHostRegister returned {int(code)}); set a smaller buffer"
            )
        self.largest_payload = min(producer.largest_entry, STAGING_BYTES)
        self._staging = torch.empty(self.largest_payload, dtype=torch.uint8, device=device)
        self._ready = torch.ones(1, dtype=torch.int64, device=device)
        self._stream = torch.cuda.Stream(device)
        self._were_read = torch.cuda.Event()
        # Imported here because it needs Triton, which comes with a torch that has CUDA.
        from hs_capture.capture.device_planes import split_pairs

        self._split_pairs = split_pairs
        self._compile_kernel()

    def copy(
        self,
        slot: Slot,
        parts: Sequence[Rows],
        tensors: Sequence[torch.Tensor],
        whole: Sequence[torch.Tensor] = (),
        at: int = 0,
    ) -> None:
        """See `Copier.copy`. One stream does all copies in order, so one staging buffer serves."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # First what may fail for lack of memory, while no copy to the slot is on its way.
            gathered = self._gather(whole)
            size = self._stage(parts, tensors)
            self._were_read.record()
            entry = PAGE + slot.position % self._capacity
            payload = entry + slot.shape.payload_offset
            self._ring[payload : payload + size].copy_(self._staging[:size], non_blocking=True)
            if gathered is not None:
                target = self._ring[payload + at : payload + at + len(gathered)]
                target.copy_(gathered, non_blocking=True)
            ready = entry + 8 * EntryWord.READY
            self._ring[ready : ready + 8].view(torch.int64).copy_(self._ready, non_blocking=True)

    def protect(self) -> None:
        """See `Copier.protect`: the server's stream waits on the device, the thread does not."""
        torch.cuda.current_stream().wait_event(self._were_read)

    def _gather(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return tensors of one dtype as one of bytes; None if there are none."""
        if not tensors:
            return None
        for tensor in tensors:
            tensor.record_stream(self._stream)
        return torch.cat([tensor.flatten() for tensor in tensors]).view(torch.uint8)

    def _compile_kernel(self) -> None:
        """Have the kernel compiled now and not in the middle of the first request."""
        pairs = torch.zeros(2, 2, dtype=torch.int16, device=self._staging.device)
        planes = self._staging[:8].view(2, 2, 2)
        self._split_pairs(pairs, planes[0], planes[1])

    def _stage(self, parts: Sequence[Rows], tensors: Sequence[torch.Tensor]) -> int:
        """Split the rows into planes in the staging buffer; return how many bytes they are."""
        copies = list(runs(parts))
        rows = sum(count for _, _, count in copies)
        offset = 0
        for tensor in tensors if rows else ():
            tensor.record_stream(self._stream)
            size = rows * tensor.shape[-1] * tensor.itemsize
            planes = self._staging[offset : offset + size].view(tensor.itemsize, rows, -1)
            if tensor.itemsize == 2:
                for row, source, count in copies:
                    low, high = planes[:, row : row + count]
                    pairs = tensor[source : source + count].view(torch.int16)
                    self._split_pairs(pairs, low, high)
            else:
                split_planes(tensor, parts, planes)
            offset += size
        return offset


def split_planes(tensor: torch.Tensor, parts: Sequence[Rows], planes: torch.Tensor) -> None:
    """Write the rows of `parts` to `planes`, uint8 [bytes an element, rows, width]."""
    for row, source, count in runs(parts):
        rows = tensor[source : source + count].view(torch.uint8)
        elements = rows.unflatten(-1, (-1, tensor.itemsize))
        planes[:, row : row + count].copy_(elements.permute(2, 0, 1))


def runs(parts: Sequence[Rows]) -> Iterator[tuple[int, int, int]]:
    """Yield (row in the payload, row in the tensor, rows) for parts, neighbours joined."""
    row, start, count = 0, 0, 0
    for part in parts:
        if count and part.row == start + count:
            count += part.stop - part.start
            continue
        if count:
            yield row, start, count
        row, start, count = row + count, part.row, part.stop - part.start
    if count:
        yield row, start, count
