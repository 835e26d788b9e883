"""The doors, judged in real interpreters that have them open or closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib import import_module
from pathlib import Path

import pytest

import sitecustomize_shim

SHIM = Path(sitecustomize_shim.__file__).parent
DEPENDENCIES = {"numpy", "orjson", "xxhash", "zstandard", "wrapt", "cffi"}
"""What verify imports without --model."""
PATH = os.pathsep.join(entry for entry in sys.path if entry)


def doors(
    python: str | Path = sys.executable,
    *options: str,
    path: str | None = None,
    **environ: str,
) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and checks, by name, of verify in a fresh interpreter."""
    done = subprocess.run(
        [str(python), *options, "-m", "hs_capture.verify", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            **({} if path is None else {"PYTHONPATH": path}),
            **environ,
        },
    )
    assert done.returncode in (0, 1, 2, 3), done.stderr
    said = json.loads(done.stdout)
    return done.returncode, {check["name"]: check for check in said["checks"]}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which nothing is installed."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=False, symlinks=True)
    return place / "bin" / "python"


def test_both_doors_of_an_installation_are_open() -> None:
    code, checks = doors()
    assert code == 2
    assert checks["package"]["state"] == "ok"
    assert checks["start-up file"]["state"] == "ok"
    assert checks["start-up file"]["text"].endswith("/hs-capture.pth")
    assert checks["plugin"] == {
        "name": "plugin",
        "state": "ok",
        "text": "entry point sglang.srt.plugins: hs_capture",
        "hint": "",
    }
    assert "sitecustomize" not in checks


def test_a_list_of_plugins_that_leaves_us_out_is_said() -> None:
    _, checks = doors(SGLANG_PLUGINS="one,two")
    assert (checks["plugin"]["state"], checks["plugin"]["text"]) == (
        "warn",
        "SGLANG_PLUGINS='one,two' leaves out hs_capture",
    )
    _, checks = doors(SGLANG_PLUGINS="one,hs_capture")
    assert checks["plugin"]["state"] == "ok"


def test_the_option_s_closes_the_start_up_file() -> None:
    _, checks = doors(sys.executable, "-S", path=PATH)
    assert (checks["start-up file"]["state"], checks["start-up file"]["text"]) == (
        "warn",
        "this Python runs with -S, which skips start-up files",
    )
    assert checks["plugin"]["state"] == "ok"


def test_without_any_open_door_both_fail(bare: Path) -> None:
    _, checks = doors(bare, path=PATH, SGLANG_PLUGINS="other")
    assert checks["start-up file"]["state"] == "fail"
    assert checks["start-up file"]["text"].startswith("no hs-capture.pth in ")
    assert str(bare.parents[1]) in checks["start-up file"]["text"]
    assert checks["start-up file"]["hint"] == (
        "install it into the environment of the server, in a checkout of hs-capture: "
        "python -m pip install . (a --target directory is no site directory: there the plugin "
        "does the work)"
    )
    assert checks["plugin"]["state"] == "fail"


def test_off_the_site_directories_the_plugin_is_enough(bare: Path) -> None:
    _, checks = doors(bare, path=PATH)
    assert checks["start-up file"]["state"] == "warn"
    assert checks["plugin"]["state"] == "ok"


def test_a_start_up_file_of_something_else_is_not_ours(bare: Path) -> None:
    (folder,) = (bare.parents[1] / "lib").glob("python3*/site-packages")
    file = folder / "hs-capture.pth"
    file.write_text("# emptied\n")
    try:
        _, checks = doors(bare, path=PATH, SGLANG_PLUGINS="other")
    finally:
        file.unlink()
    assert (checks["start-up file"]["state"], checks["start-up file"]["text"]) == (
        "fail",
        f"{file} does not call sitecustomize_shim",
    )


def test_our_sitecustomize_first_on_the_path_is_an_open_door(bare: Path) -> None:
    _, checks = doors(bare, path=f"{SHIM}{os.pathsep}{PATH}", SGLANG_PLUGINS="other")
    assert (checks["sitecustomize"]["state"], checks["sitecustomize"]["text"]) == (
        "ok",
        str(SHIM / "sitecustomize.py"),
    )
    assert checks["plugin"]["state"] == "warn"


def test_a_foreign_sitecustomize_in_the_way_is_named(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").touch()
    path = os.pathsep.join([str(tmp_path), str(SHIM), PATH])
    _, checks = doors(bare, path=path, SGLANG_PLUGINS="other")
    assert (checks["sitecustomize"]["state"], checks["sitecustomize"]["text"]) == (
        "fail",
        f"a foreign {tmp_path}/sitecustomize.py comes first, and Python runs only one",
    )


def test_a_copy_that_shadows_the_installed_package_is_said(tmp_path: Path) -> None:
    source = Path(sitecustomize_shim.__file__).parents[1]
    (tmp_path / "hs_capture").symlink_to(source / "hs_capture")
    copy = tmp_path / "copy" / "hs_capture"
    copy.parent.mkdir()
    subprocess.run(["cp", "-r", str(source / "hs_capture"), str(copy)], check=True)
    init = copy / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "', '__version__ = "9.'))
    _, checks = doors(path=str(copy.parent))
    assert checks["package"]["state"] == "warn"
    assert checks["package"]["text"].startswith("two versions are mixed: 9.")


@pytest.mark.parametrize("lacks", ["numpy", "orjson", "wrapt", "xxhash"])
def test_a_python_that_lacks_a_dependency_is_told_in_one_line(
    bare: Path, tmp_path: Path, lacks: str
) -> None:
    source = Path(sitecustomize_shim.__file__).parents[1]
    (tmp_path / "hs_capture").symlink_to(source / "hs_capture")
    for name in DEPENDENCIES - {lacks}:
        (tmp_path / name).symlink_to(Path(str(import_module(name).__file__)).parent)
    done = subprocess.run(
        [str(bare), "-m", "hs_capture.verify", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "python -m hs_capture.verify: run it with the Python that runs the server: "
        f"{bare} lacks {lacks}\n"
    )


def test_without_a_distribution_the_package_is_called_not_installed(
    bare: Path, tmp_path: Path
) -> None:
    source = Path(sitecustomize_shim.__file__).parents[1]
    for name in ("hs_capture", "sitecustomize_shim"):
        (tmp_path / name).symlink_to(source / name)
    for name in DEPENDENCIES:
        module = import_module(name)
        (tmp_path / name).symlink_to(Path(str(module.__file__)).parent)
    _, checks = doors(bare, path=str(tmp_path))
    assert "is not installed" in checks["package"]["text"]
    assert checks["plugin"]["state"] == "fail"
