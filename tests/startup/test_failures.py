"""A plugin that cannot work says so in one line and lets SGLang run."""

from __future__ import annotations

from pathlib import Path

import pytest

from startup.environment import Environment

BROKEN = [
    pytest.param(
        "def install(): raise RuntimeError('first line\\nsecond line')",
        "RuntimeError: first line second line",
        id="install-raises",
    ),
    pytest.param("def install(): raise SystemExit(3)", "SystemExit: 3", id="install-exits"),
    pytest.param("import no_such", "ModuleNotFoundError: No module named 'no_such'", id="import"),
    pytest.param(
        "",
        "ImportError: cannot import name 'install' from 'hs_capture.hooks' ({file})",
        id="version-skew",
    ),
]


def broken_package(folder: Path, hooks: str) -> Path:
    """Put a package with such hooks where it is found before the installed one."""
    package = folder / "hs_capture"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hooks.py").write_text(hooks)
    return package / "hooks.py"


@pytest.mark.parametrize(("hooks", "reason"), BROKEN)
def test_hook_that_raises_is_one_line_and_sglang_still_imports(
    hooks: str, reason: str, installed: Environment, tmp_path: Path
) -> None:
    """The host must not notice, but for the line."""
    file = broken_package(tmp_path, hooks)
    state = installed.state_on("import sglang", PYTHONPATH=str(tmp_path))
    assert "sglang" in state.modules
    assert state.trip_wires == 0
    assert state.stderr == f"hs-capture: not active: {reason.format(file=file)}\n"


def test_hook_that_raises_through_the_plugin_door_is_one_line_too(
    plain_host: Environment, beside: Path, tmp_path: Path
) -> None:
    """SGLang's plugin loading sees no error."""
    broken_package(tmp_path, "def install(): raise RuntimeError('broken')")
    code = "import sglang.srt.plugins; sglang.srt.plugins.load_plugins()"
    state = plain_host.state_on(code, PYTHONPATH=f"{tmp_path}:{beside}")
    assert state.door == "plugin"
    assert state.stderr == "hs-capture: not active: RuntimeError: broken\n"


@pytest.mark.parametrize("stderr", ["sys.stderr.close()", "sys.stderr = None"])
def test_hook_that_raises_is_harmless_where_nothing_can_be_said(
    stderr: str, installed: Environment, tmp_path: Path
) -> None:
    """A closed or missing stderr does not turn into an error of the import."""
    broken_package(tmp_path, "def install(): raise RuntimeError('broken')")
    state = installed.state_on(f"import sys; {stderr}; import sglang", PYTHONPATH=str(tmp_path))
    assert "sglang" in state.modules


def test_interrupt_while_hooks_are_set_up_is_not_swallowed(
    installed: Environment, tmp_path: Path
) -> None:
    """Ctrl-C stops the program as always."""
    broken_package(tmp_path, "def install(): raise KeyboardInterrupt")
    code = """
        try:
            import sglang
        except KeyboardInterrupt:
            print("interrupted")
        else:
            raise SystemExit("swallowed")
    """
    state = installed.state_on(code, PYTHONPATH=str(tmp_path))
    assert state.stderr == ""


def loads(environment: Environment, folder: Path, module: str) -> list[str]:
    """Import a module of SGLang in which nothing can be wrapped; return what is said.

    No torch is there, so the hooks themselves raise, in the middle of the import.
    """
    package = folder / "srt" / Path(*module.split(".")[:-1])
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (folder / "srt" / f"{module.replace('.', '/')}.py").write_text("LOADED = True\n")
    code = f"""
        import sglang.srt
        sglang.srt.__path__.append({str(folder / "srt")!r})
        from sglang.srt.{module} import LOADED
        from hs_capture.hooks.installed import broken, wrapped
        assert (LOADED, wrapped) == (True, [])
        why = "ModuleNotFoundError: No module named 'torch'"
        assert broken == {{"sglang.srt.{module}": why}}
    """
    return environment.state_on(code).stderr.splitlines()


def test_wrapping_that_raises_is_kept_for_the_refusal_and_the_module_still_imports(
    installed: Environment, tmp_path: Path
) -> None:
    """SGLang would pass over a model whose import raises. The start is refused later on."""
    assert loads(installed, tmp_path, "models.deepseek_v2") == []


def test_wrapping_that_raises_where_starts_are_refused_is_one_line(
    installed: Environment, tmp_path: Path
) -> None:
    """Nobody is left to refuse the start then."""
    (line,) = loads(installed, tmp_path, "model_executor.model_runner")
    assert line.startswith(
        "hs-capture: cannot wrap sglang.srt.model_executor.model_runner: ModuleNotFoundError("
    )
    assert "nothing is captured" in line
