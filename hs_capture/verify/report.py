"""What verify found out, as plain data: one line a check, one verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

CLOCK_SLACK = 2.0
"""Clocks of two machines may differ by so many seconds."""
State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing looked at: what it is called, how it is, what to do when it is not well."""

    name: str
    state: State
    text: str
    hint: str = ""


class Verdict(Enum):
    """The answer; `exit_code` is that of the command."""

    FIRED = "fired", 0
    ATTACHED = "attached", 1
    NOT_ATTACHED = "not attached", 2
    DAMAGED = "damaged", 3
    CONTRADICTED = "contradicted", 3

    def __init__(self, word: str, exit_code: int) -> None:
        self.word = word
        self.exit_code = exit_code


@dataclass(frozen=True)
class Proof:
    """What the model's head says about the captures, with the number of contradictions."""

    checks: tuple[Check, ...]
    contradictions: int
    told: dict[str, Any]


@dataclass(frozen=True)
class Report:
    """Everything that verify says. `summary` is the verdict in one sentence.

    `head` is what the model's head says, None if it was not asked.
    """

    verdict: Verdict
    summary: str
    dump_dir: Path | None
    checks: tuple[Check, ...]
    runs: tuple[dict[str, Any], ...]
    head: dict[str, Any] | None = None

    def to_object(self) -> dict[str, Any]:
        """The report for machines; the keys are described in docs/environment.md."""
        return {
            "verdict": self.verdict.word,
            "exit_code": self.verdict.exit_code,
            "summary": self.summary,
            "dump_dir": None if self.dump_dir is None else str(self.dump_dir),
            "checks": [
                {"name": check.name, "state": check.state, "text": check.text, "hint": check.hint}
                for check in self.checks
            ],
            "runs": list(self.runs),
            "head": self.head,
        }

    def to_text(self) -> str:
        """The report for people: aligned lines, the hint below each line that is not well."""
        width = max((len(check.name) for check in self.checks), default=0)
        lines: list[str] = []
        for check in self.checks:
            lines.append(f"{check.state:<4}  {check.name:<{width}}  {check.text}")
            if check.hint and check.state != "ok":
                lines.append(f"{'':<4}  {'':<{width}}  -> {check.hint}")
        lines.append("")
        lines.append(f"{self.verdict.word}: {self.summary} (exit code {self.verdict.exit_code})")
        return "\n".join(lines)


def size_text(count: float) -> str:
    """A number of bytes for people, in powers of 1024."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def age_text(seconds: float) -> str:
    """A time ago for people; one that is yet to come means that a clock was put back."""
    ahead = seconds <= -CLOCK_SLACK
    when = "ahead of the clock" if ahead else "ago"
    seconds = -seconds if ahead else max(seconds, 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} {when}"
    return f"{seconds:.0f} s {when}"
