"""Two ways to get a server process: the way users start one, and a quick one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

CPU_HOST = Path(__file__).parent / "cpu_host"
ZYGOTE = Path(__file__).parent / "zygote.py"

INTERPRETED: Mapping[str, str] = {"TRITON_INTERPRET": "1"}
"""Has Triton's kernels run on the CPU. It must be set when SGLang is imported."""

Mounts = Sequence[Sequence[str]]


class Launched(Protocol):
    """A started server process."""

    pid: int

    def poll(self) -> int | None:
        """Return None while it runs, then its exit code, or minus the signal that ended it."""


class Launcher(Protocol):
    """Starts server processes."""

    def launch(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        mounts: Mounts = (),
    ) -> Launched:
        """Start ``sglang.launch_server`` with these arguments, in a session of its own.

        ``mounts`` are commands to run first, in a mount namespace that only the server sees.
        """


def host_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return our environment, with what SGLang needs on a plain CPU, and ``extra``.

    Settings of SGLang, of hs-capture and of the probes that happen to be in ours are left out,
    and so is PYTHONPATH: the plugin must be found because it is installed.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SGLANG_", "HS_TEST_")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    return {
        **ours,
        "PYTHONPATH": str(CPU_HOST),
        "PYTHONUNBUFFERED": "1",
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "cpu_models",
        # Compiling a few small functions would take the first request 20 s.
        "TORCH_COMPILE_DISABLE": "1",
        # Spinning threads of one process starve the others where there are few cores.
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
    }


class Spawner:
    """Starts servers as users do: ``python -m sglang.launch_server``, SGLang's children spawned."""

    def __init__(self, python: Path | None = None) -> None:
        """``python`` is the interpreter, by default the one that runs the tests."""
        self._python = str(python or sys.executable)

    def launch(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        mounts: Mounts = (),
    ) -> subprocess.Popen[bytes]:
        """See Launcher. Private mounts are not for this way of starting."""
        if mounts:
            raise ValueError("private mounts need the quick launcher")
        with log.open("ab") as out:
            return subprocess.Popen(
                [self._python, "-m", "sglang.launch_server", *arguments],
                # "-m" finds modules where it is started, and the tree is not what is tested.
                cwd=log.parent,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )


class Zygote:
    """Starts servers as forks of one process that imported SGLang; see zygote.py.

    Hook installation in a spawned child is not exercised this way; everything after it is. The
    import takes a while and goes on in the background until the first server is asked for.
    """

    def __init__(self, log: Path, environment: Mapping[str, str] | None = None) -> None:
        """``environment`` is what must be set when SGLang is imported."""
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(ZYGOTE)],
                env=host_environment(environment or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
                text=True,
            )
        self._ready = False

    def launch(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        mounts: Mounts = (),
    ) -> Launched:
        """See Launcher."""
        reply = self._ask(
            op="start",
            arguments=list(arguments),
            environment=dict(environment),
            log=str(log),
            mounts=[list(command) for command in mounts],
        )
        return _Fork(self, reply["pid"])

    def poll(self, pid: int) -> int | None:
        """Return the exit code of the fork ``pid``, or None while it runs. Answers once."""
        code = self._ask(op="poll", pid=pid)["exit"]
        return None if code is None else int(code)

    def close(self) -> None:
        """End the process, and with it every server it still has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=180)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        if not self._ready:
            self._ready = bool(self._answer()["ready"])
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote ended:\n{self._log.read_text()}")
        return dict(json.loads(line))


class _Fork:
    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.pid = pid
        self._zygote = zygote
        self._exit: int | None = None

    def poll(self) -> int | None:
        if self._exit is None:
            self._exit = self._zygote.poll(self.pid)
        return self._exit
