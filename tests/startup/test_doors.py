"""The three doors, and what they do when there are several or somebody else stands in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from startup.environment import Environment

LOAD_PLUGINS = """
import sglang.srt.plugins
sglang.srt.plugins.load_plugins()
"""

# Somebody else's sitecustomize: it leaves a mark and, as many do, adds to the path.
FOREIGN = """
import sys
sys.foreign_ran = getattr(sys, "foreign_ran", 0) + 1
sys.path.append("/added/by/the/foreign/one")
"""

# The same, but one that runs the next sitecustomize on the path as well.
CHAINING = (
    FOREIGN
    + """
import os
here = os.path.dirname(__file__)
sys.path.remove(here)
sys.modules.pop("sitecustomize")
import sitecustomize
sys.path.insert(0, here)
"""
)

FOREIGN_RAN_ONCE = """
import sys
assert sys.foreign_ran == 1
assert sys.path.count("/added/by/the/foreign/one") == 1
import sglang
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with a foreign sitecustomize."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FOREIGN)
    return folder


def test_plugin_door_opens_where_no_start_up_file_is_read(
    plain_host: Environment, beside: Path
) -> None:
    """After `pip install --target` with PYTHONPATH, SGLang's own plugin loading activates us."""
    state = plain_host.state_on(LOAD_PLUGINS, PYTHONPATH=str(beside))
    assert state.hooked
    assert state.door == "plugin"
    assert state.trip_wires == 0


def test_plugin_door_needs_sglang_to_load_plugins(plain_host: Environment, beside: Path) -> None:
    """Without that call nothing happens: a target folder is no site directory."""
    state = plain_host.state_on("import sglang", PYTHONPATH=str(beside))
    assert "sitecustomize_shim" not in state.modules
    assert not state.hooked


def test_plugin_door_opens_when_the_variable_was_set_after_the_start(
    installed: Environment,
) -> None:
    """The start-up file saw no variable; the plugin call looks again."""
    code = f"""
import os
os.environ["SGLANG_HS_DUMP_DIR"] = "/dev/shm/x"
{LOAD_PLUGINS}"""
    state = installed.state(code)
    assert state.hooked
    assert state.door == "plugin"


def test_door_that_opened_first_is_the_one_reported(installed: Environment) -> None:
    """An installed wheel has two doors; the second call changes nothing."""
    state = installed.state_on(LOAD_PLUGINS)
    assert state.hooked
    assert state.door == "pth"


def test_sitecustomize_door_opens_with_pythonpath_alone(
    plain_host: Environment, beside: Path
) -> None:
    """For those who cannot install: the shim's folder on PYTHONPATH, and the one above it."""
    state = plain_host.state_on("import sglang", PYTHONPATH=f"{beside}/sitecustomize_shim:{beside}")
    assert state.hooked
    assert state.door == "sitecustomize"
    assert state.stderr == ""


def test_sitecustomize_door_stays_shut_when_switched_off(
    plain_host: Environment, beside: Path
) -> None:
    """It makes no difference to the path either."""
    code = "import sys; print(sys.path[1:3]); import sglang"
    path = f"{beside}/sitecustomize_shim:{beside}"
    state = plain_host.state(code, PYTHONPATH=path)
    assert not state.hooked
    assert state.door is None
    printed = plain_host.run("-c", code, PYTHONPATH=path).stdout
    assert printed == f"{path.split(':')}\n"


def test_our_sitecustomize_runs_the_foreign_one_behind_it(
    plain_host: Environment, beside: Path, foreign: Path
) -> None:
    """Theirs runs once, keeps what it did to the path, and stands in `sys.modules` as if alone."""
    code = f"""
{FOREIGN_RAN_ONCE}
import sitecustomize
assert sitecustomize.__file__ == {str(foreign / "sitecustomize.py")!r}
assert sys.path[1:4] == {[f"{beside}/sitecustomize_shim", str(beside), str(foreign)]}
"""
    path = f"{beside}/sitecustomize_shim:{beside}:{foreign}"
    state = plain_host.state_on(code, PYTHONPATH=path)
    assert state.hooked
    assert state.door == "sitecustomize"
    assert state.stderr == ""


def test_chaining_foreign_sitecustomize_before_ours_runs_ours(
    plain_host: Environment, beside: Path, foreign: Path
) -> None:
    """Both chain: neither runs the other a second time."""
    (foreign / "sitecustomize.py").write_text(CHAINING)
    path = f"{foreign}:{beside}/sitecustomize_shim:{beside}"
    state = plain_host.state_on(FOREIGN_RAN_ONCE, PYTHONPATH=path)
    assert state.hooked
    assert state.door == "sitecustomize"
    assert state.stderr == ""


def test_foreign_sitecustomize_before_ours_that_does_not_chain_leaves_the_plugin_door(
    plain_host: Environment, beside: Path, foreign: Path
) -> None:
    """It hides ours, and nothing can be done about that at start; SGLang's plugins still load."""
    path = f"{foreign}:{beside}/sitecustomize_shim:{beside}"
    state = plain_host.state_on(FOREIGN_RAN_ONCE + LOAD_PLUGINS, PYTHONPATH=path)
    assert state.hooked
    assert state.door == "plugin"


def test_foreign_sitecustomize_does_not_matter_to_an_installed_wheel(
    installed: Environment, foreign: Path
) -> None:
    """The start-up file needs no sitecustomize: theirs runs as it did before."""
    state = installed.state_on(FOREIGN_RAN_ONCE, PYTHONPATH=str(foreign))
    assert state.hooked
    assert state.door == "pth"
    assert state.stderr == ""


def test_broken_foreign_sitecustomize_is_reported_by_python_and_does_not_stop_ours(
    plain_host: Environment, beside: Path, foreign: Path
) -> None:
    """Its error is shown as if we were not there, and our door opens all the same."""
    (foreign / "sitecustomize.py").write_text("raise RuntimeError('of the foreign one')")
    path = f"{beside}/sitecustomize_shim:{beside}:{foreign}"
    state = plain_host.state_on("import sglang", PYTHONPATH=path)
    assert state.hooked
    assert "Error in sitecustomize" in state.stderr
    assert "RuntimeError: of the foreign one" in state.stderr


def test_foreign_sitecustomize_that_misses_a_module_is_not_taken_for_absent(
    plain_host: Environment, beside: Path, foreign: Path
) -> None:
    """An ImportError inside it is its own error and is shown."""
    (foreign / "sitecustomize.py").write_text("import no_such_module")
    path = f"{beside}/sitecustomize_shim:{beside}:{foreign}"
    state = plain_host.state_on("import sglang", PYTHONPATH=path)
    assert state.hooked
    assert "No module named 'no_such_module'" in state.stderr


def test_init_called_twice_lays_one_trip_wire(installed: Environment) -> None:
    """A virtual environment reads start-up files twice by itself; more calls change nothing."""
    call = "import sitecustomize_shim; sitecustomize_shim.init(); sitecustomize_shim.init()"
    assert installed.state_on(call).trip_wires == 1


def test_init_called_after_sglang_was_imported_lays_no_trip_wire_again(
    installed: Environment,
) -> None:
    """What has fired stays fired."""
    call = "import sglang, sitecustomize_shim; sitecustomize_shim.init()"
    state = installed.state_on(call)
    assert state.hooked
    assert state.trip_wires == 0


def test_init_called_by_hand_is_a_door_of_its_own(plain_host: Environment, beside: Path) -> None:
    """A script that can do nothing else may call it before it imports SGLang."""
    code = "import sitecustomize_shim; sitecustomize_shim.init(); import sglang"
    state = plain_host.state_on(code, PYTHONPATH=str(beside))
    assert state.hooked
    assert state.door == "call"
