"""Environments like the one of the tests but for one thing, made of links in a second or two."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

_PACKAGES = Path(sysconfig.get_path("purelib"))


def environment_without(name: str, root: Path) -> Path:
    """Make a virtual environment with all that ours has but the distribution ``name``.

    Returns its Python. Packages are links, so they are found, and read start-up files, as in ours.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    files = distribution(name).files
    assert files, f"{name} does not list its files"
    (site_packages,) = root.glob("lib/python*/site-packages")
    _link(_PACKAGES, site_packages, {file.parts[0] for file in files})
    return root / "bin" / "python"


def altered_package(
    name: str, version: str, folder: Path, changes: Mapping[str, tuple[str, str]]
) -> Path:
    """Make a folder for PYTHONPATH with an installed package as another release could have it.

    ``changes`` maps files of the package to a text in them and the one that takes its place. The
    distribution has the name of the package, and says that it is of ``version``.
    """
    for file, (old, new) in changes.items():
        parts = Path(file).parts
        for depth in range(len(parts)):
            inner = Path(name, *parts[:depth])
            if not (folder / inner).is_dir() or (folder / inner).is_symlink():
                (folder / inner).unlink(missing_ok=True)
                (folder / inner).mkdir(parents=True)
                _link(_PACKAGES / inner, folder / inner)
        text = (_PACKAGES / name / file).read_text()
        assert old in text, f"{file} of {name} has no {old!r}"
        changed = folder / name / file
        changed.unlink()
        changed.write_text(text.replace(old, new))
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def _link(source: Path, target: Path, left_out: frozenset[str] | set[str] = frozenset()) -> None:
    """Link what is in ``source`` into ``target``. Each gets byte-code of its own."""
    for entry in source.iterdir():
        if entry.name not in {"__pycache__", *left_out}:
            (target / entry.name).symlink_to(entry)
