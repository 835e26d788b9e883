"""Every way to install, and that removal leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from startup.environment import Environment


@pytest.fixture
def empty_host(host: Callable[[], Environment]) -> Environment:
    """A host of its own for one test, without the package."""
    return host()


def use(environment: Environment) -> Environment:
    """Run it switched on and off, so that whatever it leaves behind is there."""
    state = environment.state_on("import sglang, hs_capture")
    assert state.hooked
    assert state.door == "pth"
    assert state.stderr == ""
    assert environment.state().door is None
    return environment


def compiled_of_others(files: set[str]) -> set[str]:
    """Byte-code of packages that are not ours: running anything may add some."""
    ours = ("hs_capture", "hs-capture", "sitecustomize_shim")
    return {
        name
        for name in files
        if "__pycache__" in name and not any(part.startswith(ours) for part in Path(name).parts)
    }


def assert_nothing_left(environment: Environment, before: set[str]) -> None:
    """The files are those of before, and a start says nothing."""
    left = environment.files() - before
    assert left - compiled_of_others(left) == set()
    assert before - environment.files() == set()
    state = environment.state_on("import sglang")
    assert "sitecustomize_shim" not in state.modules
    assert not state.hooked
    assert state.stderr == ""


def test_uninstalling_the_wheel_leaves_nothing(empty_host: Environment, wheel: Path) -> None:
    """A start-up file left behind would break every start of the environment."""
    before = empty_host.files()
    empty_host.pip("install", "--no-deps", wheel)
    use(empty_host).pip("uninstall", "--yes", "hs-capture")
    assert_nothing_left(empty_host, before)


def test_editable_install_activates_and_uninstalls(empty_host: Environment, tree: Path) -> None:
    """`pip install -e` has the doors too, and runs the tree's own code."""
    before = empty_host.files()
    empty_host.pip("install", "--no-deps", "--no-build-isolation", "--editable", tree)
    printed = use(empty_host).run("-c", "import hs_capture; print(hs_capture.__file__)").stdout
    assert Path(printed.strip()) == tree / "hs_capture" / "__init__.py"
    empty_host.pip("uninstall", "--yes", "hs-capture")
    assert_nothing_left(empty_host, before)


def test_source_archive_installs_activates_and_uninstalls(
    empty_host: Environment, sdist: Path
) -> None:
    """An archive is built on the spot, and the result has the doors."""
    before = empty_host.files()
    empty_host.pip("install", "--no-deps", "--no-build-isolation", sdist)
    use(empty_host).pip("uninstall", "--yes", "hs-capture")
    assert_nothing_left(empty_host, before)


def test_reinstalling_over_itself_keeps_one_of_each_file(
    empty_host: Environment, wheel: Path
) -> None:
    """An upgrade neither doubles nor loses a start-up file."""
    empty_host.pip("install", "--no-deps", wheel)
    once = empty_host.files()
    use(empty_host).pip("install", "--no-deps", "--force-reinstall", wheel)
    now = empty_host.files()
    assert now ^ once == compiled_of_others(now ^ once)
    use(empty_host)
