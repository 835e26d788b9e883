"""Is capture switched on here, and is its directory fit to be written?"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from hs_capture.dump_dir import prepare
from hs_capture.errors import ConfigError
from hs_capture.settings import DUMP_DIR, Settings, set_in_vain
from hs_capture.verify.report import Check, size_text

EXAMPLE = Path("/dev/shm/sglang_hs")
"""The directory that a hint names where nobody has named one."""


def look_at_settings(
    settings: Settings | None, error: ConfigError | None, given: Path | None, starting: bool
) -> Check:
    """Judge the variables of this shell; `given` is the dump directory that --dump-dir names.

    While a server is `starting` nobody is told to start one.
    """
    name = "settings"
    if error is not None:
        hint = "set it right" + ("" if starting else " and start the server again")
        return Check(name, "fail", str(error), hint)
    if settings is None:
        return Check(
            name,
            "fail" if given is None else "warn",
            f"{DUMP_DIR} is not set in this shell, so a server started from it captures nothing",
            ""
            if starting
            else f"export {DUMP_DIR}={shlex.quote(str(given or EXAMPLE))} before the server starts",
        )
    layers = settings.layers
    listed = ",".join(map(str, layers.ids))
    chosen = {"auto": "auto", "ids": listed, "eagle3": f"eagle3:{listed}"}[layers.kind]
    # A server has an environment of its own.
    text = f"of this shell: layers {chosen}, final {' and '.join(settings.final) or 'none'}"
    if settings.follows_decode:
        text += ", generated tokens too"
    if settings.rids is not None:
        text += f", only rids like {settings.rids!r}"
    return Check(name, "ok", text)


def look_at_variables() -> Iterator[Check]:
    """Warn of variables of this shell that do nothing, as one whose name is mistyped."""
    names = set_in_vain()
    if names:
        yield Check(
            "variables",
            "warn",
            f"set in this shell: {', '.join(names)}; without {DUMP_DIR} nothing is captured",
            f"export {DUMP_DIR} too, or unset what is not meant",
        )


def look_at_directory(path: Path, settings: Settings | None, starting: int | None) -> Check:
    """Judge the dump directory as a server start would; a missing one is left missing.

    `starting` is the process id of a server that is about to make it, None if there is none.
    """
    name = "directory"
    if not os.path.lexists(path):
        if starting is not None:
            text = f"server {starting} makes it when it has loaded its model"
            return Check(name, "warn", f"{path} does not exist yet; {text}")
        hint = f"start the server with {DUMP_DIR}={shlex.quote(str(path))}"
        return Check(name, "fail", f"{path} does not exist (yet)", hint)
    try:
        # A small file is written and removed: nothing else tells of quotas and read-only mounts.
        found = prepare(path)
        system = os.statvfs(path)
    except ConfigError as error:
        return Check(name, "fail", str(error), "a server would refuse to start with it")
    except OSError as error:
        return Check(name, "fail", f"{path} cannot be looked at: {error.strerror}")
    free = system.f_bavail * system.f_frsize
    text = f"{path}, {size_text(free)} free"
    if found.file_mode & 0o040:
        text += ", readable by its group"
    reserve = (
        0 if settings is None else settings.reserve.bytes_of(system.f_blocks * system.f_frsize)
    )
    if free <= reserve:
        return Check(
            name,
            "fail",
            f"{text}, which is the reserve of {size_text(reserve)}: nothing more is stored",
            "move captures away, or set SGLANG_HS_RESERVE lower",
        )
    return Check(name, "ok", text)
