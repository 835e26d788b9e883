"""What a process has used so far, as /proc tells it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_SLEEPS = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    """Seconds of the processor, faults of pages, and how often the threads slept."""

    user: float
    system: float
    faults: int
    sleeps: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Look at process `pid`."""
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        # Behind the name: state, then numbers; see proc_pid_stat(5).
        numbers = fields.split()
        tick = os.sysconf("SC_CLK_TCK")
        tasks = Path(f"/proc/{pid}/task").glob("*/status")
        found = [_SLEEPS.search(task.read_text()) for task in tasks]
        return cls(
            user=int(numbers[11]) / tick,
            system=int(numbers[12]) / tick,
            faults=int(numbers[7]),
            sleeps=sum(int(match[1]) for match in found if match),
        )
