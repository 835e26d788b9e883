"""The SGLang servers of this user, as /proc shows them.

Arguments and environments of other processes may hold keys. They are looked at for the few things
that matter here and are never shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process. `started` is in Unix seconds, exact to about a second.

    `environ` is what it was started with, or None where that cannot be read: it is another user's,
    or the process wrote its title over it, as SGLang's schedulers do.
    """

    pid: int
    parent: int
    started: float
    arguments: tuple[str, ...] = field(repr=False)
    environ: Mapping[str, str] | None = field(repr=False)

    @property
    def without_site(self) -> bool:
        """Whether the interpreter was told -S, which skips every start-up file."""
        rest = iter(self.arguments[1:])
        for argument in rest:
            if not argument.startswith("-") or argument.startswith("--"):
                return False
            for position, letter in enumerate(argument[1:], start=2):
                if letter == "S":
                    return True
                if letter in "cm":
                    return False
                if letter in "WX":
                    # These take a value, from here to the end of the word or the next word.
                    if position == len(argument):
                        next(rest, None)
                    break
        return False


def name_of_first_process() -> str:
    """Return the name of process 1, empty where it cannot be read."""
    with suppress(OSError):
        return (_PROC / "1" / "comm").read_text().strip()
    return ""


@dataclass(frozen=True)
class Server:
    """One SGLang server: the process that was started first, and its descendants of the kind."""

    root: Process
    pids: frozenset[int]

    @property
    def environ(self) -> Mapping[str, str] | None:
        """The environment that the server was started with, or None when it cannot be read."""
        return self.root.environ

    @property
    def working_directory(self) -> Path | None:
        """Where the server runs, or None when that cannot be read."""
        try:
            return (_PROC / str(self.root.pid) / "cwd").readlink()
        except OSError:
            return None


def started_at(pid: int) -> float | None:
    """When process `pid` started, in Unix seconds; None when there is none (a zombie is none)."""
    found = _parent_and_start(_PROC / str(pid))
    return None if found is None else found[1]


def find_servers(marks: Sequence[str]) -> list[Server]:
    """The running servers of this user, the oldest first.

    `marks` are the words by which the command line of an SGLang process is known. This process
    and its ancestors are left out: a script that runs both is no server for that. Process 1 is an
    ancestor of whatever lost its parent, and may well be the server of a container.
    """
    processes = _processes_of_this_user()
    own = _ancestors(os.getpid(), processes) - {1}
    marked = {
        pid: process
        for pid, process in processes.items()
        if pid not in own and _is_marked(process, marks)
    }
    servers = []
    for process in marked.values():
        if process.parent not in marked:
            pids = frozenset(p for p in marked if process.pid in _ancestors(p, processes))
            servers.append(Server(process, pids))
    return sorted(servers, key=lambda server: server.root.started)


def _is_marked(process: Process, marks: Sequence[str]) -> bool:
    # An editor or a pager may name the same words; what runs a server is a Python, or a process
    # that has given itself a title.
    program = process.arguments[0].rsplit("/", 1)[-1]
    if any(program.startswith(mark) for mark in marks):
        return True
    return "python" in program and any(mark in " ".join(process.arguments) for mark in marks)


def _ancestors(pid: int, processes: Mapping[int, Process]) -> set[int]:
    found: set[int] = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found


def _processes_of_this_user() -> dict[int, Process]:
    user = os.geteuid()
    found: dict[int, Process] = {}
    for entry in _PROC.iterdir():
        # Processes come and go while the list is walked.
        with suppress(OSError):
            if entry.name.isdecimal() and entry.stat().st_uid == user:
                process = _process(entry)
                if process is not None:
                    found[process.pid] = process
    return found


def _process(entry: Path) -> Process | None:
    place = _parent_and_start(entry)
    arguments = os.fsdecode((entry / "cmdline").read_bytes()).rstrip("\0").split("\0")
    if place is None or not arguments[0]:
        return None
    parent, started = place
    return Process(int(entry.name), parent, started, tuple(arguments), _environ(entry))


def _parent_and_start(entry: Path) -> tuple[int, float] | None:
    try:
        stat = (entry / "stat").read_text(errors="replace")
        boot = next(
            float(line.split()[1])
            for line in (_PROC / "stat").read_text().splitlines()
            if line.startswith("btime ")
        )
    except OSError:
        return None
    # The name, in parentheses, may hold anything, also spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return int(fields[1]), boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _environ(entry: Path) -> Mapping[str, str] | None:
    try:
        text = os.fsdecode((entry / "environ").read_bytes())
    except OSError:
        return None
    pairs = [item.partition("=") for item in text.split("\0")]
    # A title written over it leaves a text without any variable.
    return {name: value for name, sep, value in pairs if sep} or None
