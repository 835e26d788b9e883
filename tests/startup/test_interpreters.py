"""Every way to start an interpreter, and every way to start a child of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from startup.environment import DUMP_DIR, VARIABLE, Environment

CHILDREN = """
import multiprocessing
import os
import sys


def report(connection, method):
    import sglang

    wires = [type(finder).__name__ for finder in sys.meta_path].count("_TripWire")
    door = sys.modules["sitecustomize_shim"].door
    connection.send((door, "hs_capture.hooks" in sys.modules, wires))


if __name__ == "__main__":
    method, variable, value = sys.argv[1:]
    if variable:
        os.environ[variable] = value
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=report, args=(theirs, method))
    child.start()
    print(*ours.recv() if ours.poll(300) else ("no answer",))
    child.join(300)
    print("sglang" in sys.modules, child.exitcode)
"""


@pytest.mark.parametrize("option", ["", "-I", "-E", "-s", "-P", "-B", "-O", "-Xfrozen_modules=off"])
def test_importing_sglang_sets_up_the_hooks(option: str, installed: Environment) -> None:
    """Whatever the interpreter's options, the hooks come with SGLang and the trip-wire goes."""
    state = installed.state_on("import sglang", *option.split())
    assert state.hooked
    assert state.door == "pth"
    assert state.trip_wires == 0
    assert state.stderr == ""


def test_importing_a_module_inside_sglang_is_enough(installed: Environment) -> None:
    """Nobody has to write `import sglang` itself."""
    state = installed.state_on("from sglang.srt.plugins import load_plugins")
    assert state.hooked
    assert state.trip_wires == 0


def test_option_s_switches_everything_off(installed: Environment) -> None:
    """With -S the interpreter reads no start-up file; SGLang then runs as without the plugin."""
    packages = str(installed.site_packages)
    state = installed.state_on("import sglang", "-S", PYTHONPATH=packages)
    assert "sglang" in state.modules
    assert "sitecustomize_shim" not in state.modules
    assert not state.hooked
    assert state.stderr == ""


def test_option_m_has_the_hooks_before_the_server_runs(installed: Environment) -> None:
    """`python -m sglang.launch_server` imports SGLang, and so the hooks, before it runs a line."""
    result = installed.run("-m", "sglang.launch_server", **{VARIABLE: DUMP_DIR})
    assert (result.returncode, result.stdout, result.stderr) == (0, "hooked\n", "")


def test_option_m_runs_unhooked_when_switched_off(installed: Environment) -> None:
    """The same command without the variable is the plain server."""
    result = installed.run("-m", "sglang.launch_server")
    assert (result.returncode, result.stdout, result.stderr) == (0, "not hooked\n", "")


def test_every_finder_is_asked_for_sglang_once(installed: Environment) -> None:
    """The trip-wire leaves `sys.meta_path` during a search; no other finder may miss its turn."""
    code = """
        import sys
        asked = []
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "sglang":
                    asked.append(self)
        first, second = Finder(), Finder()
        assert type(sys.meta_path[0]).__name__ == "_TripWire"
        sys.meta_path.insert(0, first)
        sys.meta_path.insert(2, second)
        import sglang
        assert asked == [first, second], asked
        assert [f for f in sys.meta_path if isinstance(f, Finder)] == [first, second]
    """
    assert installed.state_on(code).hooked


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_child_process_is_hooked(method: str, installed: Environment, tmp_path: Path) -> None:
    """A child imports SGLang with the hooks, though its parent never did."""
    script = tmp_path / "parent.py"
    script.write_text(CHILDREN)
    result = installed.run(script, method, "", "", **{VARIABLE: DUMP_DIR})
    assert (result.stdout, result.stderr) == ("pth True 0\nFalse 0\n", "")


def test_child_is_hooked_when_its_parent_sets_the_variable(
    installed: Environment, tmp_path: Path
) -> None:
    """A script may set the variable itself before it starts an engine: SGLang spawns."""
    script = tmp_path / "parent.py"
    script.write_text(CHILDREN)
    result = installed.run(script, "spawn", VARIABLE, DUMP_DIR)
    assert (result.stdout, result.stderr) == ("pth True 0\nFalse 0\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_child_process_is_left_alone_when_switched_off(
    method: str, installed: Environment, tmp_path: Path
) -> None:
    """Without the variable no child has hooks."""
    script = tmp_path / "parent.py"
    script.write_text(CHILDREN)
    result = installed.run(script, method, "", "")
    assert (result.stdout, result.stderr) == ("None False 0\nFalse 0\n", "")
