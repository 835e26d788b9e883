"""What the plugin adds to the start of an interpreter.

Two fresh virtual environments, one with the wheel of this tree and one without, start
`python -c pass` with the variable unset and set. Every round runs all four once, in a new random
order, and the result is the median of the differences within the rounds, so that a slow moment of
the machine hits both sides of a difference. All modules are byte-compiled, as pip leaves them.

Ends with 1 when the plugin, switched off, adds more than the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[1]
VARIABLE = "SGLANG_HS_DUMP_DIR"


@dataclass(frozen=True)
class Condition:
    """One way to start an interpreter; the same fields name it in the output."""

    installed: bool
    variable_set: bool

    def __str__(self) -> str:
        where = "installed" if self.installed else "not installed"
        return f"{where}, variable {'set' if self.variable_set else 'unset'}"


CONDITIONS = [
    Condition(installed, is_set) for installed in (False, True) for is_set in (False, True)
]


@dataclass(frozen=True)
class Difference:
    """What the plugin adds with the variable in one state, in milliseconds."""

    variable_set: bool
    median_ms: float
    low_ms: float
    high_ms: float


def make_environment(root: Path, wheel: Path | None) -> Path:
    """Make a virtual environment, with the wheel if there is one, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    python = root / "bin" / "python"
    if wheel is not None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
        options = ["--quiet", "--no-deps", "--no-index", "--compile"]
        subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    return python


def build_wheel(into: Path) -> Path:
    """Build the wheel of this tree."""
    options = ["--wheel", "--no-isolation", "--outdir", str(into)]
    command = [sys.executable, "-m", "build", *options, str(TREE)]
    # Started elsewhere, or a folder of the tree called build would be taken for the builder.
    subprocess.run(command, check=True, cwd=into.parent, stdout=sys.stderr)
    [wheel] = into.iterdir()
    return wheel


def variables(condition: Condition) -> dict[str, str]:
    """The environment variables of a condition; nothing of the caller's reaches the child."""
    path = {"PATH": os.environ.get("PATH", os.defpath)}
    return {**path, VARIABLE: "/dev/shm/never-made"} if condition.variable_set else path


def check(python: Path, condition: Condition) -> None:
    """Make sure that a condition is what it says, byte-code included."""
    code = (
        "import sys; shim = sys.modules.get('sitecustomize_shim'); "
        "print(shim is not None, getattr(shim, 'door', None) is not None, "
        "bool(shim) and __import__('os').path.exists(shim.__cached__))"
    )
    command = [str(python), "-c", code]
    result = subprocess.run(
        command, env=variables(condition), capture_output=True, text=True, check=True
    )
    active = condition.installed and condition.variable_set
    expected = f"{condition.installed} {active} {condition.installed}"
    if result.stdout.strip() != expected:
        raise SystemExit(f"{condition}: expected {expected}, found {result.stdout.strip()}")


def start_ms(python: Path, environment: dict[str, str]) -> float:
    """Start the interpreter, wait for its end, and return the time in milliseconds."""
    began = time.perf_counter_ns()
    pid = os.posix_spawn(python, [str(python), "-c", "pass"], environment)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter_ns() - began) / 1e6
    if status != 0:
        raise SystemExit(f"{python} -c pass ended with status {status}")
    return took


def measure(pythons: dict[bool, Path], rounds: int, seed: int) -> dict[Condition, list[float]]:
    """Time all conditions `rounds` times, after a twentieth of that to warm up."""
    order = random.Random(seed)
    times: dict[Condition, list[float]] = {condition: [] for condition in CONDITIONS}
    warm_up = max(5, rounds // 20)
    for index in range(-warm_up, rounds):
        for condition in order.sample(CONDITIONS, len(CONDITIONS)):
            took = start_ms(pythons[condition.installed], variables(condition))
            if index >= 0:
                times[condition].append(took)
    return times


def difference(times: dict[Condition, list[float]], variable_set: bool, seed: int) -> Difference:
    """The median of the paired differences, with a 95% interval from resampling the rounds."""
    with_it, without = (times[Condition(installed, variable_set)] for installed in (True, False))
    pairs = [a - b for a, b in zip(with_it, without, strict=True)]
    resample = random.Random(seed)
    medians = sorted(statistics.median(resample.choices(pairs, k=len(pairs))) for _ in range(1000))
    return Difference(variable_set, statistics.median(pairs), medians[25], medians[974])


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and return everything that is to be printed."""
    with tempfile.TemporaryDirectory(prefix="hs-capture-startup-") as folder:
        root = Path(folder)
        wheel = build_wheel(root / "wheel")
        pythons = {
            False: make_environment(root / "without", None),
            True: make_environment(root / "with", wheel),
        }
        for condition in CONDITIONS:
            check(pythons[condition.installed], condition)
        times = measure(pythons, arguments.rounds, arguments.seed)
    return {
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            "hs_capture": wheel.name.split("-")[1],
        },
        "parameters": {
            "rounds": arguments.rounds,
            "seed": arguments.seed,
            "limit_ms": arguments.limit,
        },
        "starts": [
            {
                **asdict(condition),
                "median_ms": statistics.median(values),
                "fastest_ms": min(values),
            }
            for condition, values in times.items()
        ],
        "added": [asdict(difference(times, is_set, arguments.seed)) for is_set in (False, True)],
    }


def print_table(report: dict[str, Any]) -> None:
    """Print the report for people."""
    for name in ("machine", "versions", "parameters"):
        entries = report[name].items()
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in entries))
    print(f"\n{'python -c pass':<34}{'median ms':>11}{'fastest ms':>12}")
    for start in report["starts"]:
        condition = Condition(start["installed"], start["variable_set"])
        print(f"{condition!s:<34}{start['median_ms']:>11.2f}{start['fastest_ms']:>12.2f}")
    print(f"\n{'the plugin adds':<34}{'median ms':>11}{'95% interval':>18}")
    for entry in report["added"]:
        name = f"variable {'set' if entry['variable_set'] else 'unset'}"
        interval = f"{entry['low_ms']:+.2f} to {entry['high_ms']:+.2f}"
        print(f"{name:<34}{entry['median_ms']:>+11.2f}{interval:>18}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300, help="rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order of the starts")
    parser.add_argument(
        "--limit",
        type=float,
        default=1.0,
        help="milliseconds that the plugin may add when switched off (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args(argv)
    report = run(arguments)
    within = report["added"][0]["median_ms"] <= arguments.limit
    report["within_limit"] = within
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print_table(report)
        print(f"\nswitched off it adds {'at most' if within else 'MORE than'} {arguments.limit} ms")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
