"""What of a request's cached prefix other requests of this run captured: lineage in, links out."""

from __future__ import annotations

import numpy as np

from hs_capture.format.links import Link

LINEAGE_BYTES = 16
"""Size of the lineage of one token: two int64."""
_KEY_SHIFT = 32
_POSITION = (1 << _KEY_SHIFT) - 1


def links_of(lineage: memoryview, ids: memoryview, key: int) -> tuple[Link, ...]:
    """Return whose captured rows the first tokens of request `key` are.

    `lineage` is int64 [prefix, 2], see `ring.message`; `ids` are the token ids of its prompt,
    int64 [tokens]. A row counts where it has the same position and the same token id.
    """
    rows = np.frombuffer(lineage, np.int64).reshape(-1, 2)
    count = len(rows)
    origin, tokens = rows[:, 0], rows[:, 1]
    keys = origin >> _KEY_SHIFT
    holds = (
        (origin >= 0)
        & (keys != key)
        & (origin & _POSITION == np.arange(count))
        & (tokens == np.frombuffer(ids, np.int64)[:count])
    )
    keys = np.where(holds, keys, -1)
    edges = np.flatnonzero(np.diff(keys)) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), count]
    return tuple(
        (start, stop, int(keys[start]))
        for start, stop in zip(starts, stops, strict=True)
        if start < stop and keys[start] >= 0
    )
