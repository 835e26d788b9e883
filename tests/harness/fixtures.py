"""Fixtures of the tests with real servers: a tiny model, its reference, what starts servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.captures import wait_until
from harness.launching import INTERPRETED, Launcher, Spawner, Zygote
from harness.linked import environment_without
from harness.processes import of_this_run
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig, serving
from harness.tiny_model import build_tiny_model

_logs: list[Path] = []
_SHOWN_LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Show the end of the newest server's log with every failure."""
    report: pytest.TestReport = yield
    if report.failed and _logs and _logs[-1].exists():
        lines = _logs[-1].read_text(errors="replace").splitlines()
        report.sections.append((f"end of {_logs[-1]}", "\n".join(lines[-_SHOWN_LINES:])))
    return report


@pytest.fixture(scope="session")
def model(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model; made while the zygote is still importing."""
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def reference(model: Path) -> Reference:
    """Transformers with the weights of the tiny model."""
    return Reference(model)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The quick launcher. When it ends, nothing that any test started may be left."""
    log = tmp_path_factory.mktemp("zygote") / "log"
    zygote = Zygote(log)
    _logs.insert(0, log)
    yield zygote
    zygote.close()
    # What it killed at its end may take a moment to die.
    wait_until(of_this_run, lambda left: left == [])


@pytest.fixture(scope="session")
def interpreting(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """A quick launcher whose servers run Triton's kernels on the CPU, in its interpreter.

    It ends before `zygote` does, which looks for what is left.
    """
    log = tmp_path_factory.mktemp("interpreting") / "log"
    interpreting = Zygote(log, INTERPRETED)
    _logs.insert(0, log)
    yield interpreting
    interpreting.close()


@pytest.fixture(scope="session")
def spawner() -> Spawner:
    """The launcher that starts servers as users do."""
    return Spawner()


@pytest.fixture(scope="session")
def python_without_us(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with SGLang in which hs-capture is not installed."""
    return environment_without("hs-capture", tmp_path_factory.mktemp("without-us") / "venv")


@pytest.fixture(scope="module")
def new_log(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return a path for the log of one server; a test that fails shows the newest."""

    def new() -> Path:
        _logs.append(tmp_path_factory.mktemp("server") / "log")
        return _logs[-1]

    return new


@pytest.fixture(scope="module")
def serve(new_log: Callable[[], Path]) -> Serve:
    """Start a server for a block: ``with serve(launcher, config) as server``."""

    @contextmanager
    def started(launcher: Launcher, config: ServerConfig) -> Iterator[Server]:
        with serving(launcher, config, new_log()) as server:
            yield server

    return started


@pytest.fixture(scope="module")
def dump_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump directory that does not exist yet."""
    return tmp_path_factory.mktemp("capture") / "dump"
