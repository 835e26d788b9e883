"""What the wheel and the source archive hold."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

from startup.conftest import build
from startup.environment import Environment


def dist_info(wheel: Path) -> str:
    """The name of the folder with the metadata."""
    return "-".join(wheel.name.split("-")[:2]) + ".dist-info"


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_start_up_files_lie_at_the_root_of_site_packages_with_their_exact_text(
    installed: Environment,
) -> None:
    """Both files are public: README shows their text, and people look for it."""
    pth = installed.site_packages / "hs-capture.pth"
    start = installed.site_packages / "hs-capture.start"
    assert pth.read_bytes() == b"import sitecustomize_shim; sitecustomize_shim.init()\n"
    assert start.read_bytes() == b"sitecustomize_shim:init\n"


def test_start_up_files_lie_nowhere_else(wheel: Path) -> None:
    """A second copy inside a package would confuse whoever looks for them, verify included."""
    names = contents(wheel)
    assert [name for name in names if "hs-capture." in name] == [
        "hs-capture.pth",
        "hs-capture.start",
    ]


def test_wheel_fits_every_python_3_and_platform(wheel: Path) -> None:
    """There is no compiled code, so one wheel is for all."""
    name, _, tag = wheel.name.split("-", 2)
    assert (name, tag) == ("hs_capture", "py3-none-any.whl")


def test_wheel_holds_the_two_packages_and_says_that_they_are_typed(wheel: Path) -> None:
    """Tests, benchmarks and documents stay out of other people's site-packages."""
    names = contents(wheel)
    assert {name.split("/")[0] for name in names} == {
        "hs_capture",
        dist_info(wheel),
        "hs-capture.pth",
        "hs-capture.start",
        "sitecustomize_shim",
    }
    assert "hs_capture/py.typed" in names


def test_entry_points_are_sglangs_plugin_group_and_one_command(wheel: Path) -> None:
    """The plugin door and the command line are found through these."""
    text = contents(wheel)[f"{dist_info(wheel)}/entry_points.txt"].decode()
    assert text.split() == [
        "[console_scripts]",
        *("hs-capture", "=", "hs_capture.cli:main"),
        "[sglang.srt.plugins]",
        *("hs_capture", "=", "sitecustomize_shim:init"),
    ]


def test_requirements_have_lower_bounds_only_and_never_name_the_host(wheel: Path) -> None:
    """An installation must never replace what the host has: no upper bound, torch without any."""
    text = contents(wheel)[f"{dist_info(wheel)}/METADATA"].decode()
    lines = text.splitlines()
    marker = "Requires-Dist: "
    # What follows a semicolon is the extra that asks for it.
    asked = [line.removeprefix(marker) for line in lines if line.startswith(marker)]
    required = {line.split(";")[0].strip() for line in asked}
    assert "torch" in required
    assert not [line for line in required if "sglang" in line]
    assert not [line for line in required if any(sign in line for sign in ("<", "==", "~=", "!="))]
    assert "Requires-Python: >=3.10" in lines


def test_package_and_distribution_have_the_same_version(
    installed: Environment, wheel: Path
) -> None:
    """What `hs_capture.__version__` says is what pip says."""
    printed = installed.run("-c", "import hs_capture; print(hs_capture.__version__)").stdout
    assert printed.strip() == wheel.name.split("-")[1]


def test_shim_stays_under_sixty_lines(wheel: Path) -> None:
    """It runs in every interpreter of the environment: a person must be able to read it at once."""
    source = contents(wheel)["sitecustomize_shim/__init__.py"].decode()
    assert len(source.splitlines()) < 60


def test_source_archive_holds_all_that_building_and_testing_need(sdist: Path) -> None:
    """Who unpacks it can run make test."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {
        ".ci/run",
        "LICENSE",
        "Makefile",
        "README.md",
        "benchmarks/startup.py",
        "pyproject.toml",
        "sitecustomize_shim/hs-capture.pth",
        "sitecustomize_shim/hs-capture.start",
        "tests/requirements-host.txt",
        "tests/requirements.txt",
        "tests/startup/fake_sglang/sglang/launch_server.py",
        "tests/startup/test_wheel.py",
    }


def test_wheel_built_from_the_source_archive_equals_the_one_from_the_tree(
    wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    """Nothing is lost on the way through the archive."""
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    [tree] = (tmp_path / "unpacked").iterdir()
    second = build("wheel", tree, tmp_path / "wheel")
    assert contents(second) == contents(wheel)
