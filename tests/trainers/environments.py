"""An environment for each trainer: its own release, unmodified, beside the torch of the tests.

Each has its own site-packages, before those of the tests. So the trainer is the one that was
released, and torch, transformers and the rest of some 6 GB are there once.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-trainers"
TRAINERS = ("specforge", "speculators", "speculators-v1", "modelopt")


def environment(name: str) -> Path:
    """Return the Python of the environment called ``name``, which is made unless it is there."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    requirements = HERE / f"requirements-{name}.txt"
    stamp = folder / "installed.txt"
    wanted = f"{sys.executable}\n{requirements.read_text()}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    # Names in a .pth come after the folder that it is in.
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    # Without dependencies: pip would put another torch there.
    options = ("--quiet", "--no-deps", "--ignore-installed")
    subprocess.run([*pip, "install", *options, "-r", requirements], check=True)
    stamp.write_text(wanted)
    return python
