"""Has the hook attached, has it fired, and was anything lost on the way?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from hs_capture.counted import count_text
from hs_capture.settings import RIDS
from hs_capture.verify.processes import Server, name_of_first_process, started_at
from hs_capture.verify.report import Check, age_text, size_text
from hs_capture.verify.runs import Evidence, Run

INITS_THAT_LEAVE = frozenset({"tini", "docker-init", "dumb-init", "catatonit"})
"""Names of first processes that end with the program that they were given, and not with the last
process that is left (`docker run --init` starts one of them)."""

_LOSSES = {
    "lost": (
        "capture",
        "given up without a file",
        "nothing of them could be stored: make room, or search the server's log for `hs-capture:`",
    ),
    "rows_dropped": (
        "row",
        "dropped",
        "the writer did not keep up or the disk was full: see docs/environment.md",
    ),
    "requests_untold": (
        "request",
        "dropped without even a line in the index",
        "the writer stood still for very long: see docs/environment.md",
    ),
    "rows_late": (
        "row",
        "too late for their captures, which are incomplete (aborted)",
        "their requests stood still for ten minutes: was the server paused in between?",
    ),
    "hook_errors": (
        "error",
        "in the hooks inside the server",
        "answers went out, captures may be missing: search the server's log for `hs-capture:`",
    ),
    "writer_errors": (
        "error",
        "in the writer",
        "captures may be missing: search the server's log for `hs-capture:`",
    ),
    "writer_restarts": (
        "restart",
        "of the writer",
        "it died and lost what it held: was it killed, or out of memory?",
    ),
}


def look_at_attachment(evidence: Evidence, starting: int | None) -> Iterator[Check]:
    """One line for every run that counts, and one for a server start that was refused since.

    `starting` is the process id of a server that loads its model and began after the refusal, None
    if there is none.
    """
    refusal, newest = evidence.refusal, evidence.runs[-1] if evidence.runs else None
    if refusal is not None and (newest is None or refusal.time > newest.info.created):
        live = newest is not None and newest.live
        yield Check(
            "start refused",
            "fail" if not live and starting is None else "warn",
            f"{age_text(time.time() - refusal.time)}, SGLang {refusal.sglang_version}: "
            f"{refusal.message}",
            "put it right and start the server again"
            if starting is None
            else f"server {starting} was started after that",
        )
    if newest is None:
        yield Check(
            "attached",
            "fail",
            f"no server has attached{'' if starting is None else ' yet'}: "
            "there is no run in the directory",
            "start the server with the variable set; if it runs, see the lines above, and search "
            "the server's log for `hs-capture:`"
            if starting is None
            else f"run verify again when server {starting} has loaded its model",
        )
    for run in evidence.judged:
        yield _attachment(run)
        yield from (Check("note", "warn", note) for note in run.info.notes)


def look_at_life(run: Run) -> Iterator[Check]:
    """Warnings about a run whose server or writer does not do what its files say."""
    age = run.heartbeat_age
    if not run.statuses:
        if run.server_alive and not run.is_store:
            yield Check(
                "writer",
                "warn",
                f"the writer of run {run.info.run_id} has not reported yet",
                "run verify again in a few seconds",
            )
        return
    if run.ended:
        return
    if not run.live:
        yield Check(
            "writer",
            "warn",
            f"run {run.info.run_id} says serving, but server process {run.info.server_pid} is "
            f"gone and the writer was last heard {age_text(age or 0)}",
            "both were killed at once: captures that were not published by then are lost",
        )
    elif run.server_alive and run.silent:
        gone = [s.writer_pid for s in run.statuses if started_at(s.writer_pid) is None]
        what = f"process {gone[0]} is gone" if gone else "is silent"
        yield Check(
            "writer",
            "warn",
            f"the writer of run {run.info.run_id} {what}; last heard {age_text(age or 0)}",
            "the server starts another one within seconds; if it does not, search its log for "
            "`hs-capture:`",
        )


def look_at_first_process(runs: Sequence[Run], servers: Sequence[Server]) -> Iterator[Check]:
    """Warn of a server with whose end its container ends, and so the writer."""
    lives = [run for run in runs if run.live and run.server_alive]
    is_first = any(run.info.server_pid == 1 for run in lives) or any(1 in s.pids for s in servers)
    init = name_of_first_process()
    if is_first:
        what = "SGLang is process 1 of this container"
    elif init in INITS_THAT_LEAVE and (lives or servers):
        what = f"process 1 of this container is {init}, which ends when SGLang has"
    else:
        return
    yield Check(
        "container",
        "warn",
        f"{what}: when the server stops, the writer is killed with it and captures that are not "
        "published yet are lost",
        "start the server through a shell that stays for the writer: see 'In a container' in "
        "README.md",
    )


def look_at_captures(run: Run) -> Iterator[Check]:
    """How much a run has captured, and what it has lost."""
    counters = run.counters
    if counters["captures"]:
        yield Check("fired", "ok", _captured(run))
    else:
        yield Check(
            "fired",
            "warn",
            f"run {run.info.run_id} has captured nothing yet",
            f"send the server a request; where {RIDS} is set, its rid has to match"
            if run.live
            else "its server got no request that was to be captured",
        )
    for name, (noun, what, hint) in _LOSSES.items():
        if counters[name]:
            text = f"{count_text(counters[name], noun)} {what}, run {run.info.run_id}"
            if name.endswith("errors") and run.last_error:
                text += f"; the last: {run.last_error}"
            yield Check(name.replace("_", " "), "warn", text, hint)


def _attachment(run: Run) -> Check:
    info = run.info
    if run.live:
        life = f"serving in process {info.server_pid}"
    elif run.is_store:
        life = "a store that captures were moved to"
    elif run.ended:
        life = "ended"
    else:
        life = f"its process {info.server_pid} is gone"
    layers = ",".join(map(str, info.layer_ids)) or "none"
    too = ", generated tokens too" if "decode" in info.phases else ""
    well = run.live or run.ended or run.is_store
    return Check(
        "attached",
        "ok" if well else "warn",
        f"run {info.run_id}, {life}: {info.model_class} of SGLang {info.sglang_version}, "
        f"door {info.door}, layers {layers}, final {' and '.join(info.final) or 'none'}{too}, "
        f"{count_text(len(info.wrapped), 'function')} wrapped",
        "" if well else "the server stopped without a word; what it published is there",
    )


def _captured(run: Run) -> str:
    counters = run.counters
    text = count_text(counters["captures"], "capture")
    # The status file may be a second older than the index.
    incomplete = max(counters["incomplete"] - run.linked, 0)
    if run.linked:
        text += f" ({run.linked:,} with rows of others)"
    if incomplete:
        reasons = ", ".join(f"{n} {reason}" for reason, n in run.incomplete_reasons.most_common())
        text += f" ({incomplete:,} incomplete{': ' if reasons else ''}{reasons})"
    text += f", {count_text(counters['tokens'], 'token')}, {size_text(counters['raw_bytes'])}"
    text += f" stored in {size_text(counters['stored_bytes'])}"
    if counters["open_records"] and run.live:
        text += f", {counters['open_records']:,} open"
    if run.last_capture is not None:
        text += f", last {age_text(run.read_at - run.last_capture)}"
    return text
