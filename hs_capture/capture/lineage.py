"""Which captured row each slot of the KV cache was computed with.

A request whose prefix is in the server's cache reads slots that another request's rows were
computed into. Who that was is known here, because every pass says which slots it writes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from hs_capture.capture.batch import Batch

NOBODY = -1
KEY_SHIFT = 32
"""The upper half of a number is the key of a request, the lower half a position in it."""


class LineageTable:
    """int64 [slots, 2]: (key << 32 | position) of the row, or -1, and the token that it is of.

    All work is put on the current stream of the device, which has to be that of the passes, and
    none of it waits for the device.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        """Nobody's row is in any of the `slots`."""
        with torch.inference_mode():
            self._table = torch.full((slots, 2), NOBODY, dtype=torch.int64, device=device)
            self._keys = self._table[:, 0]

    def __len__(self) -> int:
        return len(self._table)

    def forget(self) -> None:
        """Forget whose row is in any slot."""
        with torch.inference_mode():
            self._keys.fill_(NOBODY)

    def write(self, slots: torch.Tensor, batch: Batch | None, tokens: torch.Tensor | None) -> None:
        """Note that a pass writes `slots` [rows], those beyond the rows of `batch` for padding.

        `tokens` [rows] on the device are the ids that the rows are computed from; without them the
        ids of the prompts stand for them. Rows that are not wanted, or whose token is not known,
        are nobody's, and so are all without a `batch`.

        Raises:
            ValueError: `batch` has more rows than there are slots. All of them are nobody's then.
        """
        with torch.inference_mode():
            rows = batch.total_rows if batch is not None and batch.rows else 0
            if rows < len(slots) or rows == 0:
                self._keys.index_fill_(0, slots[rows:].to(torch.int64), NOBODY)
            if batch is None or rows == 0:
                return
            if rows > len(slots):
                self._keys.index_fill_(0, slots.to(torch.int64), NOBODY)
                raise ValueError(f"{rows} rows of a pass go to {len(slots)} slots")
            values = self._upload(_values(batch, with_ids=tokens is None))
            if tokens is not None:
                values = torch.stack((values[0], tokens[:rows].to(torch.int64)))
            self._table[slots[:rows]] = values.T

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the table's rows of `slots` [n], as int64 [n, 2] on the device."""
        with torch.inference_mode():
            return self._table.index_select(0, slots)

    def _upload(self, values: npt.NDArray[np.int64]) -> torch.Tensor:
        host = torch.from_numpy(values)
        if self._table.device.type != "cuda":
            return host
        # torch keeps pinned memory until the copy has been made.
        return host.pin_memory().to(self._table.device, non_blocking=True)


def _values(batch: Batch, *, with_ids: bool) -> npt.NDArray[np.int64]:
    """Return the numbers of all rows, and the token ids of the prompts: int64 [1 or 2, rows]."""
    values = np.full((2 if with_ids else 1, batch.total_rows), NOBODY, np.int64)
    for rows in batch.rows:
        ids = rows.request.input_ids
        stop = max(rows.start, min(rows.stop, len(ids))) if with_ids else rows.stop
        place = slice(rows.row, rows.row + stop - rows.start)
        values[0, place] = (rows.request.key << KEY_SHIFT) + np.arange(rows.start, stop)
        if with_ids:
            values[1, place] = ids[rows.start : stop]
    return values
