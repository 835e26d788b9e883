"""The captures of a run, read whole: which are sound, and which cannot be trusted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hs_capture.counted import count_text
from hs_capture.soundness import Examined, examine
from hs_capture.verify.report import Check, size_text
from hs_capture.verify.runs import Run

REPLACE = (
    "do not train on it: delete it, then run the same `hs-capture extract` again, which fetches "
    "what is missing, or send its request again with an `extra_key` of its own, so that SGLang "
    "computes all rows"
)
"""What to do about a damaged capture. Extract takes one that is still there for done."""

NAMED_FILES = 10
"""So many damaged captures of a run are named; more would hide the rest of the report."""


@dataclass(frozen=True)
class Examination:
    """The captures of one run that were read whole."""

    run: Run
    captures: tuple[Examined, ...]
    seconds: float

    @property
    def damaged(self) -> tuple[Examined, ...]:
        return tuple(capture for capture in self.captures if capture.problem is not None)


def examine_run(run: Run, read_one: Callable[[], None]) -> Examination:
    """Read the newest captures of a run, those that it names; `read_one` is told of each."""
    began = time.monotonic()
    captures = []
    for path, entry in run.newest.items():
        examined = examine(path, entry, run.info)
        if examined is not None:
            captures.append(examined)
            read_one()
    return Examination(run, tuple(captures), time.monotonic() - began)


def look_at_soundness(examination: Examination) -> list[Check]:
    """A line for each damaged capture that is named, or one for all that are right."""
    captures, damaged = examination.captures, examination.damaged
    run_id = examination.run.info.run_id
    checks = [
        Check("sound", "fail", capture.problem or "", REPLACE) for capture in damaged[:NAMED_FILES]
    ]
    if len(damaged) > NAMED_FILES:
        text = f"{count_text(len(damaged) - NAMED_FILES, 'more capture')} of run {run_id} damaged"
        checks.append(Check("sound", "fail", text, "--json names them all"))
    if captures and not damaged:
        size = size_text(sum(capture.stored_bytes for capture in captures))
        text = (
            f"the newest {count_text(len(captures), 'capture')} of run {run_id}: checksums, "
            f"values, counts and layers are right ({size} read in {examination.seconds:.1f} s)"
        )
        checks.append(Check("sound", "ok", text))
    return checks
