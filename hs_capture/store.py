"""Finding captures: a store is a directory, and gives its captures in order, by rid, by tokens."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hs_capture.captured_request import Capture
from hs_capture.counted import count_text
from hs_capture.errors import NotCapturedError, StoreNotFoundError
from hs_capture.format.catalog import find_catalogs
from hs_capture.format.container import ContainerReader
from hs_capture.format.metadata import INPUT_IDS

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from hs_capture.format.catalog import Catalog
    from hs_capture.format.index import IndexEntry
    from hs_capture.format.run import RunInfo


def open_store(path: str | os.PathLike[str]) -> CaptureStore:
    """Open the captures under `path`: a dump directory, one run, or any folder of .hsc files.

    The store is what is there now; open it again to see what a server has published since. Raises
    `StoreNotFoundError` (a `FileNotFoundError`) where no run and no capture is, and `FormatError`
    for a damaged run.json or a damaged capture that no index names.
    """
    return CaptureStore(path)


class CaptureStore:
    """The captures under one directory. Iteration and `len` count captures, in publish order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        catalogs = find_catalogs(self.path) if self.path.is_dir() else []
        if not catalogs:
            found = "other files" if self.path.exists() else "nothing"
            raise StoreNotFoundError(
                f"no captures at {self.path}: found {found}, expected a dump directory, a run "
                "directory (it holds run.json) or a folder with .hsc files"
            )
        self.runs: tuple[RunInfo, ...] = tuple(c.run for c in catalogs if c.run is not None)
        """The runs that are known, oldest first."""
        self._catalogs = catalogs
        self._ends = list(accumulate(len(catalog.entries) for catalog in catalogs))

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Capture]:
        return (_capture(catalog, entry) for catalog in self._catalogs for entry in catalog.entries)

    def __contains__(self, rid: object) -> bool:
        return rid in self._by_rid

    def __getitem__(self, rid: str) -> Capture:
        """The newest capture of `rid`; `NotCapturedError` (a `KeyError`) when there is none."""
        return self.at(self._of(rid)[-1])

    def entries(self) -> Iterator[IndexEntry]:
        """What the index says of each capture, in the order of iteration; no file is looked at."""
        return (entry for catalog in self._catalogs for entry in catalog.entries)

    def at(self, position: int) -> Capture:
        """The capture that iteration gives at `position`, from 0; `IndexError` beyond the end."""
        return _capture(*self.find_entry(position))

    def find_entry(self, position: int) -> tuple[Catalog, IndexEntry]:
        """What `at` makes a capture of; `IndexError` beyond the end."""
        if not 0 <= position < len(self):
            raise IndexError(f"{self.path}: capture {position} of {len(self)}")
        number = bisect_right(self._ends, position)
        catalog = self._catalogs[number]
        return catalog, catalog.entries[position - self._ends[number] + len(catalog.entries)]

    def __repr__(self) -> str:
        return (
            f"CaptureStore({str(self.path)!r}, "
            f"{count_text(len(self), 'capture')}, {count_text(len(self.runs), 'run')})"
        )

    def rids(self) -> list[str]:
        """Every rid once, in the order in which each first came."""
        return list(self._by_rid)

    def captures(self, rid: str) -> list[Capture]:
        """All captures of `rid`, oldest first; `NotCapturedError` when there is none."""
        return [self.at(position) for position in self._of(rid)]

    def find(self, input_ids: Sequence[int] | torch.Tensor) -> list[Capture]:
        """All captures of the prompt with these token ids, oldest first.

        Where generated tokens were captured too, the ids may be those of prompt and answer as well.
        For requests whose rid is not known: SGLang gives the prompt of a request with several
        answers (``n``) a rid of its own. Only the token ids of captures of this length are read.
        Nothing found is an empty list; a capture whose file is gone is passed over. Raises
        `TypeError` for what is no sequence of whole numbers.
        """
        wanted = _token_ids(input_ids)
        return [
            capture
            for capture in self
            if len(wanted) in (capture.prompt_tokens, capture.num_tokens)
            and _begins_with(capture, wanted)
        ]

    @cached_property
    def _by_rid(self) -> dict[str, list[int]]:
        """Positions by rid. Made when it is first asked for: not every reader asks by rid."""
        by_rid: dict[str, list[int]] = {}
        for position, entry in enumerate(self.entries()):
            by_rid.setdefault(entry.rid, []).append(position)
        return by_rid

    def _of(self, rid: str) -> list[int]:
        try:
            return self._by_rid[rid]
        except KeyError:
            raise NotCapturedError(f"{self.path}: no capture of rid {rid!r}") from None


def _token_ids(given: Sequence[int] | torch.Tensor) -> NDArray[np.int64]:
    found: NDArray[Any] | None
    try:
        found = np.asarray(given)
    except ValueError:
        # Lists of unequal lengths.
        found = None
    if found is None or found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise TypeError(
            f"input_ids is a {type(given).__name__}: expected token ids, a sequence or a tensor of "
            "whole numbers, as in capture.input_ids; a capture is found by its rid as store[rid]"
        )
    return found.astype(np.int64)


def _begins_with(capture: Capture, wanted: NDArray[np.int64]) -> bool:
    # The token ids are all in the capture's own file, also where rows are in others.
    try:
        with ContainerReader(capture.file) as reader:
            return np.array_equal(reader.read(INPUT_IDS, 0, len(wanted)), wanted)
    except FileNotFoundError:
        return False


def _capture(catalog: Catalog, entry: IndexEntry) -> Capture:
    return Capture(catalog.path_of(entry), entry, catalog.run, catalog.sources_of(entry))
