"""Is capture switched on here, and is its directory fit to be written?"""

from __future__ import annotations

import os
from pathlib import Path

from hs_capture.dump_dir import prepare
from hs_capture.errors import ConfigError
from hs_capture.settings import DUMP_DIR, Settings
from hs_capture.verify.report import Check, size_text


def look_at_settings(settings: Settings | None, error: ConfigError | None, given: bool) -> Check:
    """Judge the variables of this shell; `given` tells that --dump-dir names the directory."""
    name = "settings"
    if error is not None:
        return Check(name, "fail", str(error), "set it right and start the server again")
    if settings is None:
        return Check(
            name,
            "warn" if given else "fail",
            f"{DUMP_DIR} is not set in this shell, so a server started from it captures nothing",
            f"export {DUMP_DIR}=/dev/shm/sglang_hs before the server starts",
        )
    layers = settings.layers
    listed = ",".join(map(str, layers.ids))
    chosen = {"auto": "auto", "ids": listed, "eagle3": f"eagle3:{listed}"}[layers.kind]
    text = f"layers {chosen}, final {' and '.join(settings.final) or 'none'}"
    if settings.rids is not None:
        text += f", only rids like {settings.rids!r}"
    return Check(name, "ok", text)


def look_at_directory(path: Path, settings: Settings | None) -> Check:
    """Judge the dump directory as a server start would; a missing one is left missing."""
    name = "directory"
    if not os.path.lexists(path):
        return Check(
            name,
            "fail",
            f"{path} does not exist: no server has started with it",
            f"start the server with {DUMP_DIR}={path}",
        )
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
