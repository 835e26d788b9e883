"""Captures of a store that its index names and that are not there (any more)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture.counted import count_text
from hs_capture.errors import FormatError
from hs_capture.samples import read_samples
from hs_capture.verify.report import Check

if TYPE_CHECKING:
    from hs_capture.samples import Sample
    from hs_capture.verify.runs import Run

_HINT = "readers pass over them: were they moved, or deleted?"
_EXTRACT_HINT = (
    "data sets and exports leave them out: run the same `hs-capture extract` again, which fetches "
    "what is missing"
)


def look_at_gone(runs: Sequence[Run]) -> Iterator[Check]:
    """A warning for every run of a store that has lost captures.

    In the output of `extract` those count whose sample has no other capture by now: a damaged one
    is deleted and fetched again.
    """
    gone = {rid for run in runs for rid in run.gone}
    read: dict[Path, dict[str, Sample] | None] = {}
    for run in runs:
        if not run.gone:
            continue
        store = run.path.parent
        if store not in read:
            read[store] = _samples(store)
        samples = read[store]
        count = len(run.gone) if samples is None else _without_capture(run.gone, gone, samples)
        if count:
            text = f"{count_text(count, 'capture')} gone that the index names, run"
            hint = _HINT if samples is None else _EXTRACT_HINT
            yield Check("gone", "warn", f"{text} {run.info.run_id}", hint)


def _samples(store: Path) -> dict[str, Sample] | None:
    # A broken file here is for those to tell who read masks from it; it may be somebody else's.
    with suppress(FormatError, OSError):
        return read_samples(store)
    return None


def _without_capture(of_run: Sequence[str], gone: set[str], samples: dict[str, Sample]) -> int:
    """How many samples have captures `of_run` that are gone, and no other one that is not."""
    there = {sample.number for rid, sample in samples.items() if rid not in gone}
    return len({samples[rid].number for rid in of_run if rid in samples} - there)
