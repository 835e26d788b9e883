"""Which captures of a store make a training set, and in which order."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hs_capture.errors import FormatError
from hs_capture.samples import SAMPLES_FILE, Sample, read_samples

if TYPE_CHECKING:
    from hs_capture.format.index import IndexEntry
    from hs_capture.store import CaptureStore

_OLDER = "older captures of a rid"


@dataclass(frozen=True)
class Selection:
    """The chosen captures by position in the store, and those left out, counted by reason.

    `samples` has the sample of each chosen capture, and is None for a store without samples.jsonl.
    """

    positions: list[int]
    samples: list[Sample] | None
    left_out: dict[str, int]


def select(store: CaptureStore, rids: str | None = None) -> Selection:
    """Choose the newest complete capture of every rid that matches the shell pattern `rids`.

    With a samples.jsonl only the rids in it are taken, in the order of their samples; else all, in
    the order of the store. No capture file is opened. Raises `FormatError` for a damaged
    samples.jsonl and for a sample that is there under two rids.
    """
    samples = read_samples(store.path)
    left_out: Counter[str] = Counter()
    chosen: dict[str, int] = {}
    for position, entry in enumerate(store.entries()):
        why = _left_out(entry, samples, rids)
        if why is None:
            # The store comes in publish order, so the newest is the one that stays.
            if chosen.pop(entry.rid, None) is not None:
                left_out[_OLDER] += 1
            chosen[entry.rid] = position
        else:
            left_out[why] += 1
    if samples is None:
        return Selection(list(chosen.values()), None, dict(left_out))
    ordered = sorted((samples[rid] for rid in chosen), key=lambda sample: sample.number)
    for one, other in pairwise(ordered):
        if one.number == other.number:
            raise FormatError(
                f"{store.path / SAMPLES_FILE}: sample {one.number} is there twice, as rid "
                f"{one.rid!r} and as rid {other.rid!r}"
            )
    return Selection([chosen[sample.rid] for sample in ordered], ordered, dict(left_out))


def _left_out(entry: IndexEntry, samples: dict[str, Sample] | None, rids: str | None) -> str | None:
    if rids is not None and not fnmatch.fnmatchcase(entry.rid, rids):
        return "of other rids"
    if samples is not None and entry.rid not in samples:
        return f"not in {SAMPLES_FILE}"
    return None if entry.complete else f"incomplete ({entry.incomplete_reason})"
