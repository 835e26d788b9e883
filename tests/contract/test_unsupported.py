"""A real release that is too old, in an environment of its own: verify says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from contract.released import wheel
from harness.linked import environment_without
from harness.refusals import verify


def test_verify_names_a_release_that_is_too_old(tmp_path: Path) -> None:
    """It tells the release, the first one that will do, and what to do."""
    python = environment_without("sglang", tmp_path / "venv")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", wheel("0.5.9")], check=True)
    dump_dir = tmp_path / "dump"
    done = verify(dump_dir, {"SGLANG_HS_DUMP_DIR": str(dump_dir)}, python)
    assert done.returncode == 2, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fail  sglang ")]
    assert line.endswith(
        "SGLang 0.5.9 is older than 0.5.10, the first release that hs-capture can follow; "
        "upgrade SGLang or unset SGLANG_HS_DUMP_DIR"
    )
