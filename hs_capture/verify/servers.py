"""The servers that run now: attached, or why not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hs_capture.errors import ConfigError
from hs_capture.hooks.compat import installed_release, require_release
from hs_capture.settings import DUMP_DIR, Settings, set_in_vain, sglang_plugins
from hs_capture.verify.installation import PLUGIN
from hs_capture.verify.processes import Server
from hs_capture.verify.report import Check
from hs_capture.verify.runs import Run

_CLOCK_SLACK = 2.0
_RESTART = "start it again, now that hs-capture is installed"


@dataclass(frozen=True)
class Judged:
    """One running server: its line, and whether it may just be loading its model.

    `idle` is for the summary: what a server does that is not attached here and need not be, as in
    "server 7 runs and does not capture". It is empty for all others.
    """

    check: Check
    starting: bool = False
    idle: str = ""


def look_at_sglang() -> Check:
    """Which SGLang this environment has, and whether capture can be right with it."""
    name = "sglang"
    installed = installed_release()
    if installed is None:
        return Check(
            name,
            "fail",
            "no SGLang in this environment",
            "run verify with the Python that runs the server; hs-capture belongs beside SGLang",
        )
    found, package = installed
    try:
        # An editable installation has its package somewhere else.
        notes = require_release(found, package if package.is_dir() else None)
    except ConfigError as error:
        return Check(name, "fail", str(error))
    if notes:
        return Check(name, "warn", "; ".join(notes), "compare a few captures before you trust them")
    return Check(name, "ok", f"SGLang {found}")


def look_at_server(
    server: Server, dump_dir: Path | None, runs: Sequence[Run], installed: float | None
) -> Judged:
    """Judge one running server. "fail": it should capture into `dump_dir` and does not.

    A server without the variable is only suspicious while there is no run: later on it may well be
    one that nobody wants to capture. `installed` is when hs-capture was installed, in Unix
    seconds, None if that is not known.
    """
    name = f"server {server.root.pid}"
    for run in runs:
        if run.live and run.info.server_pid in server.pids:
            return Judged(Check(name, "ok", f"attached, run {run.info.run_id}"))
    late = installed is not None and server.root.started < installed - _CLOCK_SLACK
    if server.environ is None:
        text = "not attached here; its environment cannot be read"
        hint = _RESTART if late else f"was it started with {DUMP_DIR}={dump_dir or '...'}?"
        return Judged(Check(name, "warn", text, hint), idle="runs and is not attached here")
    value = server.environ.get(DUMP_DIR, "").strip()
    if not value:
        text = f"runs without {DUMP_DIR}" + (" and is older than the installation" * late)
        names = set_in_vain(server.environ)
        if names:
            text += f", so nothing is captured, whatever else is set: {', '.join(names)}"
        hint = "export the variable where the server starts, then start it again"
        check = Check(name, "warn" if runs else "fail", text, hint)
        return Judged(check, idle="runs and does not capture")
    place = _place(server, value)
    if dump_dir is None or not _is_same(place, dump_dir):
        hint = f"look there: --dump-dir {place}"
        text = f"captures into {place}, not into {dump_dir or 'here'}"
        return Judged(Check(name, "warn", text, hint), idle=f"runs and captures into {place}")
    text, hint, starting = _reason(server, server.environ, late)
    return Judged(Check(name, "fail", f"should capture into {place}, but {text}", hint), starting)


def _reason(server: Server, environ: Mapping[str, str], late: bool) -> tuple[str, str, bool]:
    """Why a server that has the variable is not attached, what to do, and whether it may yet be."""
    if late:
        return "it started before hs-capture was installed", _RESTART, False
    try:
        Settings.from_environ(environ)
    except ConfigError as error:
        hint = "set it right and start the server again"
        return f"its settings are refused: {error}", hint, False
    admitted = sglang_plugins(environ)
    if admitted is None or PLUGIN in admitted:
        hint = (
            "while it loads its model, wait and run verify again; else search its log for "
            "`hs-capture:`: its model or one of its options may not be supported"
        )
        return "it is not attached (yet)", hint, True
    text = f"SGLANG_PLUGINS leaves out {PLUGIN}"
    if server.root.without_site:
        text = f"it runs with -S, which skips start-up files, and {text}"
        return text, f"start it without -S, or add {PLUGIN} to SGLANG_PLUGINS", False
    hint = (
        f"add {PLUGIN} to SGLANG_PLUGINS and see the start-up file above; if the server is just "
        "loading its model, wait and run verify again"
    )
    return f"it is not attached, and {text}", hint, True


def _place(server: Server, value: str) -> Path:
    return Path(server.working_directory or "/", value)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.stat(), other.stat())
    except OSError:
        return one == other
