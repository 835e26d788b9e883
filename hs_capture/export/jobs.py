"""The captures to export, in order. Each is made when it is its turn: there may be millions."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hs_capture.export.formats import Row

if TYPE_CHECKING:
    from hs_capture.captured_request import Capture
    from hs_capture.samples import Sample
    from hs_capture.selection import Selection
    from hs_capture.store import CaptureStore


@dataclass(frozen=True)
class Job:
    """One capture to export; `number` is its sample's, or its place among those exported."""

    number: int
    source: str
    capture: Capture
    sample: Sample | None


class Jobs:
    """The jobs of a selection; the same job is made anew each time it is asked for."""

    def __init__(self, store: CaptureStore, selection: Selection) -> None:
        self._store, self._selection = store, selection

    def __len__(self) -> int:
        return len(self._selection.positions)

    def __iter__(self) -> Iterator[Job]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> Job:
        position = self._selection.positions[place]
        capture = self._store.at(position)
        catalog, entry = self._store.find_entry(position)
        samples = self._selection.samples
        sample = None if samples is None else samples[place]
        source = os.path.relpath(catalog.path_of(entry), self._store.path)
        return Job(place if sample is None else sample.number, source, capture, sample)


class Rows:
    """The jobs that were carried out, as the rows of the finished export."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._places = array("q")
        self.numbers = array("q")
        """The number of each row."""

    def add(self, number: int, place: int) -> None:
        """The job at `place` became the row of this number."""
        self.numbers.append(number)
        self._places.append(place)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Row]:
        for number, place in zip(self.numbers, self._places, strict=True):
            job = self._jobs[place]
            yield Row(number, job.capture, job.sample)
