"""What the start-up tests share: the built wheel, and environments that have it installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from startup.environment import Environment

TREE = Path(__file__).parents[2]
FAKE_SGLANG = Path(__file__).parent / "fake_sglang" / "sglang"

# What the package needs to run, but for torch, which is large and which no start-up touches.
# The last two build the package.
NEEDED = ("numpy", "orjson", "wrapt", "xxhash", "zstandard", "hatchling", "editables")


def build(kind: str, tree: Path, into: Path) -> Path:
    """Build the "wheel" or the "sdist" of a tree and return the file."""
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", into, tree],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=900,
        cwd="/",
    )
    [built] = into.iterdir()
    return built


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a checkout holds, so that no build writes into the real one."""
    copy = tmp_path_factory.mktemp("checkout") / "tree"
    ignored = (".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "shared")
    shutil.copytree(TREE, copy, ignore=shutil.ignore_patterns(*ignored), symlinks=True)
    return copy


@pytest.fixture(scope="session")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tree."""
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of the tree."""
    return build("sdist", tree, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the needed packages in the versions that run the tests, fetched once."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    pins = [f"{name}=={version(name)}" for name in NEEDED]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "-qd", folder, *pins],
        check=True,
        timeout=900,
        cwd="/",
    )
    return folder


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Callable[[], Environment]:
    """Makes environments that are ready for the package: its needs and a stand-in for SGLang."""

    def make() -> Environment:
        environment = Environment.create(tmp_path_factory.mktemp("host") / "venv")
        environment.pip("install", "--find-links", wheelhouse, *NEEDED)
        shutil.copytree(FAKE_SGLANG, environment.site_packages / "sglang")
        return environment

    return make


@pytest.fixture(scope="session")
def plain_host(host: Callable[[], Environment]) -> Environment:
    """A host without the package. Tests must leave it as it is."""
    return host()


@pytest.fixture(scope="session")
def installed(host: Callable[[], Environment], wheel: Path) -> Environment:
    """An environment with the wheel installed. Tests must leave it as it is."""
    environment = host()
    environment.pip("install", "--no-deps", wheel)
    return environment


@pytest.fixture(scope="session")
def without(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without the package, to compare with.

    It holds a start-up file of no content: reading any such file may load a module, and that
    is the interpreter's doing, not the package's.
    """
    environment = Environment.create(tmp_path_factory.mktemp("without") / "venv")
    (environment.site_packages / "empty.pth").write_text("# nothing\n")
    return environment


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A folder with the wheel in it that is no site directory, as `pip install --target` makes."""
    folder = tmp_path_factory.mktemp("target") / "packages"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", folder, wheel], check=True, timeout=900, cwd="/")
    return folder
