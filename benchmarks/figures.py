"""What benchmarks print: the machine, medians with their spread, and whether a target is met."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The median of the rounds of one run, and what lies around it."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])

    def __str__(self) -> str:
        return f"{self.median:,.4g} ({self.least:,.4g} to {self.most:,.4g})"


@dataclass(frozen=True)
class Target:
    """A limit for one figure."""

    name: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_object(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    def __str__(self) -> str:
        word = "at least" if self.at_least else "at most"
        verdict = "met" if self.met else "MISSED"
        return f"{verdict:7} {self.name}: {self.value:,.4g}, {word} {self.limit:,.4g}"


def machine(*packages: str) -> dict[str, Any]:
    """The machine, its load, and the versions of Python and of those `packages` that are there."""
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    versions = {name: installed[name] for name in packages if name in installed}
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
