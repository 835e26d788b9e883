"""Which captures of a store make a training set, and in which order."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from hs_capture.errors import ConfigError, FormatError
from hs_capture.samples import SAMPLES_FILE, Sample, read_samples
from hs_capture.samples_elsewhere import refuse_samples_elsewhere

if TYPE_CHECKING:
    from hs_capture.format.index import IndexEntry
    from hs_capture.format.run import RunInfo
    from hs_capture.store import CaptureStore

Origin: TypeAlias = "tuple[RunInfo, int]"
"""A run and one version of its weights."""

_OLDER = "older captures of a rid"
_NO_CAPTURE = "samples without a capture"


@dataclass(frozen=True)
class Selection:
    """The chosen captures by position in the store, and those left out, counted by reason.

    `left_out` counts samples too of which the store has no capture, neither complete nor not. Those
    that `extract` has brought since the store was opened are among them.
    `samples` has the sample of each chosen capture, and is None for a store without samples.jsonl.
    `origins` has the runs that the chosen ones come from, each with the version of its weights.
    """

    positions: list[int]
    samples: list[Sample] | None
    left_out: dict[str, int]
    origins: list[Origin]


def select(
    store: CaptureStore,
    rids: str | None = None,
    weights_version: int | None = None,
    *,
    layers_are_chosen: bool = False,
) -> Selection:
    """Choose the newest complete capture of every rid that matches the shell pattern `rids`.

    With a samples.jsonl only the rids in it are taken, in the order of their samples, and samples
    without a capture are counted; else all rids, in the order of the store. Captures with a LoRA
    adapter, and of other weights than those asked for, are left out. No capture file is opened.
    Runs may differ in their layers if the caller chooses among these (`layers_are_chosen`).

    Raises:
        ConfigError: the captures are of several models, dtypes, choices of layers or weights, or
            another folder than the store's has their samples.jsonl.
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
            f"versions {', '.join(map(str, sorted(versions)))}; choose one "
            "(weights_version=N, --weights-version N)"
        )
    origins = _origins(store, chosen.values())
    _require_alike(origins, layers_are_chosen)
    if samples is None:
        refuse_samples_elsewhere(store, chosen.values())
        return Selection(list(chosen.values()), None, dict(left_out), origins)
    absent = _without_capture(store, samples, rids)
    if absent:
        left_out[_NO_CAPTURE] = absent
    ordered = _in_order(store, [samples[rid] for rid in chosen])
    positions = [chosen[sample.rid] for sample in ordered]
    return Selection(positions, ordered, dict(left_out), origins)


def _without_capture(store: CaptureStore, samples: dict[str, Sample], rids: str | None) -> int:
    # By number and not by rid: a sample that was fetched again has a line for each of its rids.
    captured = {samples[e.rid].number for e in store.entries() if e.rid in samples}
    asked_for = {sample.number for sample in samples.values() if _matches(sample.rid, rids)}
    return len(asked_for - captured)


def _in_order(store: CaptureStore, samples: list[Sample]) -> list[Sample]:
    ordered = sorted(samples, key=lambda sample: sample.number)
    for one, other in pairwise(ordered):
        if one.number == other.number:
            raise FormatError(
                f"{store.path / SAMPLES_FILE}: sample {one.number} is there twice, as rid "
                f"{one.rid!r} and as rid {other.rid!r}"
            )
    return ordered


def _origins(store: CaptureStore, positions: Iterable[int]) -> list[Origin]:
    found: dict[tuple[int, int], Origin] = {}
    for position in positions:
        catalog, entry = store.find_entry(position)
        if catalog.run is not None:
            key = (id(catalog), entry.weights_version)
            found.setdefault(key, (catalog.run, entry.weights_version))
    return list(found.values())


def _require_alike(origins: Sequence[Origin], layers_are_chosen: bool) -> None:
    """A trainer cannot tell the states of two models apart, nor those of two sets of weights.

    Of the weights a run holds the final norm, in which nearly all that were trained apart differ.
    """
    for run, version in origins[1:]:
        first, first_version = origins[0]
        for what, one, other in (
            ("model", first.config_digest, run.config_digest),
            ("dtype", first.dtype, run.dtype),
            ("choice of layers", first.layer_ids, run.layer_ids),
            ("weights", first.norm_of(first_version), run.norm_of(version)),
        ):
            if one != other and not (what == "choice of layers" and layers_are_chosen):
                said = "" if what == "weights" else f": {one} and {other}"
                raise ConfigError(
                    f"runs {first.run_id} and {run.run_id} differ in their {what}{said}; take each "
                    "run by itself"
                )


def _left_out(entry: IndexEntry, samples: dict[str, Sample] | None, rids: str | None) -> str | None:
    if not _matches(entry.rid, rids):
        return "of other rids"
    if samples is not None and entry.rid not in samples:
        return f"not in {SAMPLES_FILE}"
    if entry.lora is not None:
        return "with a LoRA adapter"
    return None if entry.complete else f"incomplete ({entry.incomplete_reason})"


def _matches(rid: str, rids: str | None) -> bool:
    return rids is None or fnmatch.fnmatchcase(rid, rids)
