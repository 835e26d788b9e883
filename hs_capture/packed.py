"""Many short sequences in two arrays: a million Python objects would be copied to every worker.

A data loader pickles its dataset for each worker, or forks and then copies each page in which a
reference count changes. Arrays are pickled as one block, and have no counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from hs_capture.format.links import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hs_capture.samples import Runs


class PackedStrings:
    """A sequence of strings."""

    def __init__(self, strings: Iterable[str]) -> None:
        """Pack the strings; a rid may hold half of a surrogate pair, which is kept."""
        encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
        self._ends = np.fromiter(accumulate(map(len, encoded)), np.int64, len(encoded))
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start, stop = _bounds(self._ends, index)
        return self._bytes[start:stop].tobytes().decode("utf-8", "surrogatepass")


class PackedRuns:
    """A sequence of loss masks as runs of tokens (`hs_capture.samples`)."""

    def __init__(self, masks: Iterable[Runs]) -> None:
        kept = list(masks)
        self._ends = np.fromiter(accumulate(map(len, kept)), np.int64, len(kept))
        edges = [edge for runs in kept for run in runs for edge in run]
        self._edges = np.asarray(edges, np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Runs:
        start, stop = _bounds(self._ends, index)
        return tuple((first, last) for first, last in self._edges[start:stop].tolist())


class PackedSources:
    """A sequence of the sources of captures (`hs_capture.format.links`), most of them none."""

    def __init__(self, sources: Iterable[tuple[Source, ...]]) -> None:
        ends, numbers = [0], dict[tuple[str, str, int], int]()
        rows: list[tuple[int, int, int]] = []
        for each in sources:
            for source in each:
                who = (source.file, source.rid, source.key)
                rows.append((source.start, source.stop, numbers.setdefault(who, len(numbers))))
            ends.append(len(rows))
        self._ends = np.asarray(ends[1:], np.int64)
        self._rows = np.asarray(rows, np.int64).reshape(-1, 3)
        self._files = PackedStrings(file for file, _, _ in numbers)
        self._rids = PackedStrings(rid for _, rid, _ in numbers)
        self._keys = np.asarray([key for _, _, key in numbers], np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[Source, ...]:
        first, last = _bounds(self._ends, index)
        return tuple(
            Source(start, stop, self._files[n], self._rids[n], int(self._keys[n]))
            for start, stop, n in self._rows[first:last].tolist()
        )


def _bounds(ends: NDArray[np.int64], index: int) -> tuple[int, int]:
    return int(ends[index - 1]) if index else 0, int(ends[index])
