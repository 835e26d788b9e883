"""The verdict in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from hs_capture.counted import count_text
from hs_capture.verify.examination import Examination
from hs_capture.verify.report import Verdict
from hs_capture.verify.runs import Evidence


def summary_of(
    verdict: Verdict,
    evidence: Evidence,
    examinations: Sequence[Examination],
    starting: Sequence[int],
    idle: Sequence[str],
) -> str:
    """The verdict in words.

    `starting` has the process ids of servers that load their models, `idle` says of each server
    that runs and does not capture here what it does.
    """
    if verdict is Verdict.DAMAGED:
        damaged = sum(len(examination.damaged) for examination in examinations)
        parts = [count_text(damaged, "capture")] * bool(damaged)
        parts += [count_text(len(evidence.damage), "run file")] * bool(evidence.damage)
        return f"{' and '.join(parts)} cannot be trusted"
    if verdict is Verdict.NOT_ATTACHED and starting:
        are = f"server {starting[0]} is" if len(starting) == 1 else f"{len(starting)} servers are"
        return f"no server captures here yet; {are} starting: run verify again in a while"
    if verdict is Verdict.NOT_ATTACHED:
        return "no server captures here; the lines that say fail tell why"
    judged = evidence.judged
    serving = any(run.live for run in judged)
    now = "" if serving else f"; {'; '.join(idle) or 'no server runs now'}"
    if verdict is Verdict.ATTACHED:
        return (
            "nothing captured yet" if serving else f"the last server ended without a capture{now}"
        )
    if any(examination.captures for examination in examinations if examination.run in judged):
        return f"the hook fired and the captures are sound{now}"
    fired = count_text(sum(run.counters["captures"] for run in judged), "capture")
    return f"the hook fired ({fired}), and none is here to be read: moved away or deleted{now}"
