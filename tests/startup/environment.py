"""Virtual environments of their own for the start-up tests, and what runs in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SGLANG_HS_DUMP_DIR"
DUMP_DIR = "/dev/shm/never-made-by-start-up-tests"

# Runs after a test's own code and tells what the interpreter looks like. The names of the loaded
# modules are taken first, since the report itself needs a module.
_REPORT = """
import sys
_modules = sorted(sys.modules)
import json
print(json.dumps({
    "modules": _modules,
    "trip_wires": [type(f).__name__ for f in sys.meta_path].count("_TripWire"),
    "door": getattr(sys.modules.get("sitecustomize_shim"), "door", None),
}))
"""


@dataclass(frozen=True)
class State:
    """An interpreter as it looked at the end of a test's code."""

    modules: frozenset[str]
    trip_wires: int
    door: str | None
    stderr: str

    @property
    def hooked(self) -> bool:
        """Whether the hooks of the package were set up."""
        return "hs_capture.hooks" in self.modules


@dataclass(frozen=True)
class Environment:
    """A virtual environment. Nothing of the source tree is on its path."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> Environment:
        """Make an empty environment, without pip and so without any .pth file."""
        _checked([sys.executable, "-m", "venv", "--without-pip", str(root)])
        return cls(root)

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        [found] = self.root.glob("lib/python*/site-packages")
        return found

    def files(self) -> set[str]:
        """Everything below the environment, as paths relative to it."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}

    def pip(self, *arguments: str | Path) -> None:
        """Run pip for this environment; packages come from local files only."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python)]
        offline = ["--no-index"] if arguments[0] == "install" else []
        _checked([*command, str(arguments[0]), *offline, *map(str, arguments[1:])])

    def run(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter with a clean set of variables and these ones."""
        return subprocess.run(
            [str(self.python), *map(str, arguments)],
            cwd=cwd or self.root,
            env={**_clean_variables(), **variables},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def state(self, code: str = "", *options: str, **variables: str) -> State:
        """Run `code` with the options and variables and return the interpreter's state after it."""
        result = self.run(*options, "-c", textwrap.dedent(code) + _REPORT, **variables)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout.splitlines()[-1])
        return State(
            modules=frozenset(report["modules"]),
            trip_wires=report["trip_wires"],
            door=report["door"],
            stderr=result.stderr,
        )

    def state_on(self, code: str = "", *options: str, **variables: str) -> State:
        """The same with the plugin switched on."""
        return self.state(code, *options, **{VARIABLE: DUMP_DIR, **variables})


def _clean_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def _checked(command: list[str]) -> None:
    # What PYTHONPATH adds to our environment is not installed in the other one.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, cwd="/", env=variables
    )
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
