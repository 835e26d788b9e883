"""The doors for those who do not install into the server's environment, on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.captures import run_info, wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import CPU_HOST, Spawner
from harness.prompts import prompt
from harness.reference import Reference
from harness.refusals import verify
from harness.server import Serve, ServerConfig

BUILD = Path(__file__).parents[2] / "build"
TOKENS = prompt(7, 40)

# Somebody else's sitecustomize: it leaves a mark for each process in which it ran.
FOREIGN = """
import os
with open(os.path.join(os.path.dirname(__file__), f"ran-{os.getpid()}"), "x"):
    pass
"""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed with `pip install --target`."""
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    folder = tmp_path_factory.mktemp("target") / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", folder, wheel], check=True)
    return folder


@pytest.mark.parametrize(
    ("door", "folders"),
    [("plugin", ["."]), ("sitecustomize", ["sitecustomize_shim", "."])],
    ids=["plugin", "sitecustomize"],
)
def test_a_folder_on_the_path_is_enough(
    serve: Serve,
    python_without_us: Path,
    beside: Path,
    model: Path,
    reference: Reference,
    tmp_path: Path,
    door: str,
    folders: list[str],
) -> None:
    """The run names the door, its capture is right, verify is content, others are not disturbed."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "sitecustomize.py").write_text(FOREIGN)
    path = [*(beside / folder for folder in folders), foreign, CPU_HOST]
    dump_dir = tmp_path / "dump"
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
    }
    with serve(Spawner(python_without_us), ServerConfig(model, environment)) as server:
        generate(server.url, TOKENS, "mine")
        assert_exact(wait_for(dump_dir, ["mine"])["mine"], TOKENS, reference, [1, 3, 4])
        verified = verify(dump_dir, environment, python_without_us)
    run = run_info(dump_dir)
    assert run["door"] == door
    assert (foreign / f"ran-{run['server_pid']}").is_file()
    assert verified.returncode == 0, verified.stdout
    assert f"door {door}," in verified.stdout
