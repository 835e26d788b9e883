"""From evidence to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from hs_capture.counted import count_text
from hs_capture.errors import ConfigError
from hs_capture.format.catalog import RUN_FILE
from hs_capture.hooks.compat import PROCESS_MARKS
from hs_capture.settings import DUMP_DIR, Settings, dump_dir_of
from hs_capture.verify.activity import (
    look_at_attachment,
    look_at_captures,
    look_at_first_process,
    look_at_life,
)
from hs_capture.verify.enabled import look_at_directory, look_at_settings, look_at_variables
from hs_capture.verify.examination import Examination, examine_run, look_at_soundness
from hs_capture.verify.gone import look_at_gone
from hs_capture.verify.installation import look_at_installation
from hs_capture.verify.pace import look_at_pace
from hs_capture.verify.processes import find_servers
from hs_capture.verify.progress import Progress
from hs_capture.verify.report import Check, Proof, Report, Verdict
from hs_capture.verify.runs import Evidence, read_evidence
from hs_capture.verify.servers import look_at_server, look_at_sglang
from hs_capture.verify.summary import summary_of

Prove: TypeAlias = Callable[[Path, Sequence[Path]], Proof]
"""Proves the captures of runs, given the dump directory and the folders of the runs."""


def diagnose(dump_dir: Path | None, sample: int | None, prove: Prove | None = None) -> Report:
    """Look at everything and judge.

    `dump_dir` is where captures go, None for what SGLANG_HS_DUMP_DIR says. The newest `sample`
    captures of each run are read whole, None for all of them. `prove` asks the model's head, too;
    what it raises is passed on.
    """
    settings, error = _settings()
    given = None if dump_dir is None else _dump_dir_of_run(dump_dir)
    if dump_dir is None:
        dump_dir = _directory_of_this_shell()
    evidence = Evidence((), None, ()) if dump_dir is None else read_evidence(dump_dir, sample)
    progress = Progress("read")
    try:
        examinations = tuple(examine_run(run, progress.add) for run in evidence.runs)
    finally:
        progress.end()

    installation = look_at_installation()
    servers = find_servers(PROCESS_MARKS)
    judged = [
        look_at_server(server, dump_dir, evidence.runs, installation.installed)
        for server in servers
    ]
    running = [server.check for server in judged]
    refused = 0.0 if evidence.refusal is None else evidence.refusal.time
    # The refusal of a start since a server began is most likely that of this server.
    starting = [
        server.root.pid
        for server, its in zip(servers, judged, strict=True)
        if its.starting and server.root.started > refused
    ]
    first = starting[0] if starting else None
    idle = [
        f"server {s.root.pid} {its.idle}"
        for s, its in zip(servers, judged, strict=True)
        if its.idle
    ]
    place = [
        *installation.checks,
        look_at_settings(settings, error, given, bool(starting)),
        *look_at_variables(),
        _no_directory(error) if dump_dir is None else look_at_directory(dump_dir, settings, first),
        look_at_sglang(),
    ]
    attachment = list(look_at_attachment(evidence, first)) if dump_dir is not None else []

    proof = None
    if prove is not None and dump_dir is not None:
        proof = prove(_dump_dir_of_run(dump_dir), [run.path for run in evidence.runs])
    contradictions = 0 if proof is None else proof.contradictions

    verdict = _verdict(evidence, examinations, [*running, *attachment])
    if contradictions and verdict is not Verdict.DAMAGED:
        verdict = Verdict.CONTRADICTED
    if verdict is not Verdict.NOT_ATTACHED:
        # What would stop the next start is no failure of what is there.
        place, running = _softened(place), _softened(running)
    activity = [
        *(check for run in evidence.judged for check in look_at_captures(run)),
        *(check for run in evidence.judged for check in look_at_pace(run)),
        *(check for run in evidence.judged for check in look_at_life(run)),
        *look_at_first_process(evidence.runs, servers),
        *look_at_gone(evidence.runs),
    ]
    sound = [check for examination in examinations for check in look_at_soundness(examination)]
    damage = [Check("run files", "fail", text, "do not trust this run") for text in evidence.damage]
    return Report(
        verdict=verdict,
        summary=summary_of(verdict, evidence, examinations, starting, idle)
        if verdict is not Verdict.CONTRADICTED
        else f"the model's head contradicts the states in {count_text(contradictions, 'place')}",
        dump_dir=dump_dir,
        checks=(
            *place,
            *running,
            *attachment,
            *activity,
            *sound,
            *damage,
            *(() if proof is None else proof.checks),
        ),
        runs=tuple(_run_object(examination) for examination in examinations),
        head=None if proof is None else proof.told,
    )


def _settings() -> tuple[Settings | None, ConfigError | None]:
    try:
        return Settings.from_environ(), None
    except ConfigError as error:
        return None, error


def _directory_of_this_shell() -> Path | None:
    try:
        return dump_dir_of()
    except ConfigError:
        # The check of the settings says so.
        return None


def _dump_dir_of_run(path: Path) -> Path:
    """The dump directory, where `path` is that or one run's."""
    return path.parent if (path / RUN_FILE).is_file() else path


def _no_directory(error: ConfigError | None) -> Check:
    # An error tells that there is a value; without one nothing else would have been looked at.
    missing = (
        f"neither --dump-dir nor {DUMP_DIR} is given"
        if error is None
        else f"--dump-dir is not given, and the value of {DUMP_DIR} is not accepted"
    )
    return Check(
        "directory",
        "fail",
        f"no directory to look at: {missing}",
        f"give --dump-dir, or export {DUMP_DIR} as the server has it",
    )


def _softened(checks: list[Check]) -> list[Check]:
    return [replace(c, state="warn") if c.state == "fail" else c for c in checks]


def _verdict(
    evidence: Evidence, examinations: tuple[Examination, ...], reasons: list[Check]
) -> Verdict:
    if evidence.damage or any(examination.damaged for examination in examinations):
        return Verdict.DAMAGED
    # A server that runs and should be attached here, or that was refused, counts more than what an
    # earlier one has left.
    live = any(run.live for run in evidence.runs)
    stopped = any(check.state == "fail" for check in reasons)
    if not evidence.runs or (stopped and not live):
        return Verdict.NOT_ATTACHED
    captured = any(run.counters["captures"] for run in evidence.judged) or any(
        examination.captures for examination in examinations if examination.run in evidence.judged
    )
    return Verdict.FIRED if captured else Verdict.ATTACHED


def _run_object(examination: Examination) -> dict[str, Any]:
    run, info = examination.run, examination.run.info
    return {
        "run_id": info.run_id,
        "path": str(run.path),
        "created": info.created,
        "live": run.live,
        "ended": run.ended,
        "server_pid": info.server_pid,
        "writer_pids": [status.writer_pid for status in run.statuses],
        "hs_capture_version": info.hs_capture_version,
        "sglang_version": info.sglang_version,
        "door": info.door,
        "model_class": info.model_class,
        "wrapped": list(info.wrapped),
        "layer_ids": list(info.layer_ids),
        "final": list(info.final),
        "notes": list(info.notes),
        "counters": dict(run.counters),
        "incomplete_reasons": dict(run.incomplete_reasons),
        "linked": run.linked,
        "heartbeat_age": run.heartbeat_age,
        "last_capture": run.last_capture,
        "last_error": run.last_error,
        "examined": len(examination.captures),
        "damaged": [
            {"file": str(capture.path), "error": capture.problem} for capture in examination.damaged
        ],
    }
