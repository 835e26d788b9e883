"""The source of released SGLangs: their wheels, downloaded alone, and of them what is looked at."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hs_capture.hooks.contract import CONTRACT, DECODE_CONTRACT, family_contract
from hs_capture.hooks.families import FAMILIES
from hs_capture.hooks.source import Source

WHEELS = Path(__file__).parents[2] / "build" / "wheels"
_DOWNLOAD = (
    *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"),
    *("--no-deps", "--only-binary", ":all:"),
    # The wheels are only read, so any machine may have those for this one.
    *("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
    *("--platform", "manylinux_2_34_x86_64"),
)


READ = (CONTRACT, DECODE_CONTRACT, *map(family_contract, FAMILIES))
"""All that is read of a release: what every server relies on, and each family of models."""


def files(part: Any = READ) -> Iterator[str]:
    """Yield the paths, or patterns of them, that the contract speaks of."""
    if isinstance(part, str) and part.endswith(".py"):
        yield part
    elif isinstance(part, tuple):
        for inner in part:
            yield from files(inner)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from files(getattr(part, field.name))


def wheel(version: str) -> Path:
    """Return the wheel of a release, downloaded unless it is there."""
    return _only(WHEELS, f"sglang-{version}-*.whl") or _downloaded(
        WHEELS, f"sglang=={version}", f"sglang-{version}-*.whl"
    )


def newest() -> tuple[str, Path]:
    """Return the version and the wheel of the newest release that there is today."""
    folder = WHEELS / "newest"
    shutil.rmtree(folder, ignore_errors=True)
    path = _downloaded(folder, "sglang", "sglang-*.whl", "--find-links", str(WHEELS))
    return path.name.split("-")[1], path


def unpack(path: Path, folder: Path) -> Path:
    """Unpack what the contract reads, and return the folder of the package ``sglang``."""
    patterns = [f"sglang/{file}" for file in files()]
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                archive.extract(name, folder)
    return folder / "sglang"


def read(path: Path, member: str) -> str:
    """Return the text of one file in a wheel."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(member).decode()


class Renamed(Source):
    """A source in which a name is another one, wherever it stands as a whole name."""

    def __init__(self, base: Source, old: str, new: str) -> None:
        super().__init__(base.root)
        self._base = base
        self._old = re.compile(rf"\b{re.escape(old)}\b")
        self._new = new

    def module(self, file: str) -> ast.Module | None:
        """Return the module; it is parsed again only if it has the name."""
        try:
            has_it = self._old.search(self._base.read(file)) is not None
        except OSError:
            has_it = False
        return super().module(file) if has_it else self._base.module(file)

    def read(self, file: str) -> str:
        """Return the text with the other name in it."""
        return self._old.sub(self._new, super().read(file))


def _downloaded(folder: Path, requirement: str, name: str, *options: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*_DOWNLOAD, *options, "--dest", str(folder), requirement], check=True)
    found = _only(folder, name)
    assert found is not None, f"{requirement} brought no {name}"
    return found


def _only(folder: Path, name: str) -> Path | None:
    return next(iter(sorted(folder.glob(name))), None)
