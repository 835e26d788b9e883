"""Which captures of a store make a training set, and in which order."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hs_capture.errors import ConfigError, FormatError
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


def select(
    store: CaptureStore, rids: str | None = None, weights_version: int | None = None
) -> Selection:
    """Choose the newest complete capture of every rid that matches the shell pattern `rids`.

    With a samples.jsonl only the rids in it are taken, in the order of their samples; else all, in
    the order of the store. Captures with a LoRA adapter, and of other weights than those asked for,
    are left out. No capture file is opened.

    Raises:
        ConfigError: no weights were asked for, and the captures are of several versions of them.
        FormatError: samples.jsonl is damaged, or a sample is there under two rids.
    """
    samples = read_samples(store.path)
    left_out: Counter[str] = Counter()
    chosen: dict[str, int] = {}
    versions: set[int] = set()
    for position, entry in enumerate(store.entries()):
        why = _left_out(entry, samples, rids)
        if why is None and weights_version not in (None, entry.weights_version):
            why = "of other weights"
        if why is None:
            versions.add(entry.weights_version)
            # The store comes in publish order, so the newest is the one that stays.
            if chosen.pop(entry.rid, None) is not None:
                left_out[_OLDER] += 1
            chosen[entry.rid] = position
        else:
            left_out[why] += 1
    if len(versions) > 1:
        raise ConfigError(
            f"{store.path}: the weights were changed while these were captured, they are of "
            f"versions {', '.join(map(str, sorted(versions)))}; choose one (weights_version)"
        )
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
    if entry.lora is not None:
        return "with a LoRA adapter"
    return None if entry.complete else f"incomplete ({entry.incomplete_reason})"
