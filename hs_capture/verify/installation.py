"""Is the plugin installed where this interpreter, and so a server started with it, will find it?"""

from __future__ import annotations

import json
import site
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import hs_capture
from hs_capture.settings import sglang_plugins
from hs_capture.verify.report import Check

DISTRIBUTION = "hs-capture"
PLUGIN = "hs_capture"
SHIM = "sitecustomize_shim"
START_UP_FILES = ("hs-capture.pth", "hs-capture.start")
_INSTALL = (
    "install it into the environment of the server, in a checkout of hs-capture: "
    "python -m pip install ."
)


@dataclass(frozen=True)
class Installation:
    """What was found: the checks, and when it was installed (Unix seconds, None if unknown)."""

    checks: tuple[Check, ...]
    installed: float | None


def look_at_installation() -> Installation:
    """Check the package and the doors through which it becomes active in this interpreter."""
    found = _distribution()
    doors = [_start_up_file(), _plugin(found)]
    sitecustomize = _sitecustomize()
    if sitecustomize is not None:
        doors.append(sitecustomize)
    if any(door.state == "ok" for door in doors):
        # One open door is enough; a closed one is only worth knowing.
        doors = [
            Check(door.name, "warn", door.text, door.hint) if door.state == "fail" else door
            for door in doors
        ]
    return Installation((_package(found), *doors), None if found is None else _installed(found))


def _distribution() -> Distribution | None:
    try:
        return distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def _package(found: Distribution | None) -> Check:
    here = Path(hs_capture.__file__).resolve().parent
    name = "package"
    if found is None:
        text = f"hs-capture {hs_capture.__version__} runs from {here.parent}, but is not installed"
        return Check(name, "warn", text, _INSTALL)
    place = Path(str(found.locate_file("")))
    if found.version != hs_capture.__version__:
        return Check(
            name,
            "warn",
            f"two versions are mixed: {hs_capture.__version__} runs from {here.parent}, "
            f"{found.version} is installed in {place}",
            "remove one of them; start the server and verify from the same environment",
        )
    text = f"hs-capture {found.version} in {place}"
    if _is_editable(found):
        return Check(name, "ok", f"{text}, editable from {here.parent}")
    if here.parent != place.resolve():
        return Check(
            name,
            "warn",
            f"{text}, but {here.parent} comes first on the path",
            "run verify from another directory, or take it off PYTHONPATH",
        )
    return Check(name, "ok", text)


def _is_editable(found: Distribution) -> bool:
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(origin.get("dir_info", {}).get("editable"))


def _installed(found: Distribution) -> float | None:
    for file in found.files or ():
        if file.name == "RECORD":
            try:
                # Written last by every installer; the change time also holds where the file
                # itself comes out of a cache with an older date.
                return Path(str(file.locate())).stat().st_ctime
            except OSError:
                return None
    return None


def _start_up_file() -> Check:
    name = "start-up file"
    if sys.flags.no_site:
        text = "this Python runs with -S, which skips start-up files"
        return Check(name, "fail", text, "start Python without -S")
    folders = [*site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    # From 3.15 on the second form is read, and the first one where there is no second.
    wanted = START_UP_FILES[::-1] if sys.version_info >= (3, 15) else START_UP_FILES[:1]
    for file in (Path(folder, name) for folder in folders for name in wanted):
        if not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            return Check(name, "fail", f"{file} cannot be read: {error}", _INSTALL)
        if SHIM in text:
            return Check(name, "ok", str(file))
        return Check(name, "fail", f"{file} does not call {SHIM}", _INSTALL)
    return Check(
        name,
        "fail",
        f"no {wanted[0]} in {', '.join(folders)}",
        f"{_INSTALL} (a --target directory is no site directory: there the plugin does the work)",
    )


def _plugin(found: Distribution | None) -> Check:
    name = "plugin"
    entries = [] if found is None else [e for e in found.entry_points if e.name == PLUGIN]
    if not entries:
        return Check(name, "fail", "no entry point of an installed hs-capture", _INSTALL)
    admitted = sglang_plugins()
    if admitted is not None and PLUGIN not in admitted:
        return Check(
            name,
            "fail",
            f"SGLANG_PLUGINS={','.join(admitted)!r} leaves out {PLUGIN}",
            f"add {PLUGIN} to SGLANG_PLUGINS, or unset it",
        )
    return Check(name, "ok", f"entry point {entries[0].group}: {entries[0].name}")


def _sitecustomize() -> Check | None:
    """The third door; None when nobody put our directory on the path to use it."""
    spec = PathFinder.find_spec(SHIM, sys.path)
    if spec is None or spec.origin is None:
        return None
    ours = Path(spec.origin).resolve().parent
    if not any(Path(entry or ".").resolve() == ours for entry in sys.path):
        return None
    name = "sitecustomize"
    first = PathFinder.find_spec("sitecustomize", sys.path)
    origin = "" if first is None or first.origin is None else first.origin
    if Path(origin).resolve().parent == ours:
        return Check(name, "ok", origin)
    return Check(
        name,
        "fail",
        f"a foreign {origin} comes first, and Python runs only one",
        f"put {ours} before it on PYTHONPATH: ours runs the next one too",
    )
