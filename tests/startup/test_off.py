"""Switched off the plugin is one small module and nothing else."""

from __future__ import annotations

import pytest

from startup.environment import VARIABLE, Environment

OFF = [
    pytest.param({}, id="unset"),
    pytest.param({VARIABLE: ""}, id="empty"),
    pytest.param({VARIABLE: " \t\n "}, id="whitespace"),
]


@pytest.mark.parametrize("variables", OFF)
def test_interpreter_start_imports_exactly_the_shim(
    variables: dict[str, str], installed: Environment, without: Environment
) -> None:
    """The modules at start are those of an environment without the package, plus one."""
    state = installed.state(**variables)
    assert state.modules - without.state().modules == {"sitecustomize_shim"}
    assert without.state().modules - state.modules == set()
    assert state.trip_wires == 0
    assert state.door is None
    assert state.stderr == ""


@pytest.mark.parametrize("variables", OFF)
def test_importing_sglang_loads_nothing_of_ours(
    variables: dict[str, str], installed: Environment
) -> None:
    """Neither the import nor the plugin entry point reaches the package."""
    code = "import sglang.srt.plugins; sglang.srt.plugins.load_plugins()"
    state = installed.state(code, **variables)
    assert "sglang" in state.modules
    assert not {name for name in state.modules if name.split(".")[0] in ("hs_capture", "wrapt")}
    assert state.door is None


def test_switched_on_the_start_still_imports_exactly_the_shim(
    installed: Environment, without: Environment
) -> None:
    """Every helper process inherits the variable, so what costs time waits for SGLang."""
    state = installed.state_on()
    assert state.modules - without.state().modules == {"sitecustomize_shim"}
    assert state.trip_wires == 1
    assert state.door == "pth"


def test_switched_on_without_sglang_wrapt_is_never_loaded(installed: Environment) -> None:
    """Other imports, and modules whose names only begin alike, do not touch the trip-wire."""
    code = """
        import asyncio, json, numpy
        try:
            import sglang_router
        except ImportError:
            pass
    """
    state = installed.state_on(code)
    assert "numpy" in state.modules
    assert not {name for name in state.modules if name.split(".")[0] in ("hs_capture", "wrapt")}
    assert state.trip_wires == 1


def test_importing_the_package_loads_nothing_heavy(installed: Environment) -> None:
    """`import hs_capture` is cheap: its names are looked up when they are used."""
    state = installed.state("import hs_capture")
    heavy = {"numpy", "orjson", "torch", "wrapt", "xxhash", "zstandard"}
    assert "hs_capture" in state.modules
    assert not heavy & state.modules
