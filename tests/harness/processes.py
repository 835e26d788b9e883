"""What a server leaves behind: processes and shared-memory files."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

MARK = "HS_TEST_SERVER"
"""The variable by which what a server started is known, also outside its session."""
RUN = uuid.uuid4().hex
"""How the marks of all servers of this process begin."""


@dataclass(frozen=True)
class Process:
    """A running process, as /proc shows it."""

    pid: int
    session: int
    command: str
    environment: str

    def __str__(self) -> str:
        return f"pid {self.pid}: {self.command}"


def running() -> list[Process]:
    """Return every process that is not a zombie and that we may look at."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command name stands in brackets and may hold anything; the fields follow it.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if state != "Z":
            found.append(Process(int(entry.name), int(session), command.strip(), environment))
    return found


def of_server(pid: int, mark: str) -> list[Process]:
    """Return what belongs to a server: its session, and all that inherited its mark."""
    return [
        process
        for process in running()
        if process.session == pid or f"{MARK}={mark}\0" in process.environment
    ]


def of_this_run() -> list[Process]:
    """Return what belongs to any server that this process started."""
    return [process for process in running() if f"{MARK}={RUN}" in process.environment]


def wait_until_gone(pid: int, mark: str, seconds: float) -> list[Process]:
    """Wait until nothing of a server runs any more; return what still runs after ``seconds``.

    A process that dies has lost its environment, and with it the mark, before it has closed its
    files. So whatever was seen once is waited for until it is dead.
    """
    deadline = time.monotonic() + seconds
    seen: set[int] = set()
    while True:
        seen.update(process.pid for process in of_server(pid, mark))
        left = [process for process in running() if process.pid in seen]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def shared_memory(pid: int, mark: str) -> set[Path]:
    """Return the segments in /dev/shm that the processes of a server have open or mapped.

    Files in folders there are no segments: a dump directory may well be one of those folders.
    """
    held: set[str] = set()
    for process in of_server(pid, mark):
        folder = Path("/proc", str(process.pid))
        try:
            held.update(str(link.readlink()) for link in (folder / "fd").iterdir())
            held.update(line.split()[-1] for line in (folder / "maps").read_text().splitlines())
        except OSError:
            continue
    return {Path(name) for name in held if Path(name).parent == Path("/dev/shm")}
