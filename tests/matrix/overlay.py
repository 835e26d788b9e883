"""A folder with one release of SGLang and its pins, laid over the main environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from harness.launching import CPU_HOST
from matrix.releases import Release

KERNEL_STUB = Path(__file__).parent / "kernel_stub"


def overlay(release: Release, folder: Path) -> Path:
    """Install the packages of `release` into `folder`, unless they are there, and return it."""
    stamp = folder / "installed.txt"
    wanted = "\n".join(release.requirements)
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("--no-deps", "--target", str(folder), *release.requirements),
        ],
        check=True,
    )
    stamp.write_text(wanted)
    return folder


def python_path(release: Release, folder: Path) -> str:
    """Return the PYTHONPATH with which a server runs from the overlay in `folder`."""
    stub = [KERNEL_STUB] if release.imports_kernels else []
    return ":".join(map(str, [CPU_HOST, *stub, folder]))
