"""Servers that must not serve, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.launching import Launcher
from harness.server import Server, ServerConfig


@dataclass(frozen=True)
class Refused:
    """How a refused start ended: the server's exit code, its only line of ours, its whole log."""

    exit_code: int
    line: str
    log: str


def refused_start(launcher: Launcher, config: ServerConfig, log: Path) -> Refused:
    """Start a server that must not serve, and return how it ended.

    Raises:
        AssertionError: it said nothing, or more than one line; or something of it was left.
        TimeoutError: it did not end.
    """
    server = Server(launcher, config, log)
    try:
        exit_code = server.wait_until_ended()
    except TimeoutError:
        server.kill()
        raise
    server.stop()
    lines = [line for line in server.log().splitlines() if line.startswith("hs-capture:")]
    assert len(lines) == 1, server.log()
    return Refused(exit_code, lines[0], server.log())


def verify(
    dump_dir: Path, environment: Mapping[str, str], python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m hs_capture.verify`` on a dump directory, with these variables."""
    return subprocess.run(
        [python, "-m", "hs_capture.verify", "--dump-dir", dump_dir],
        env={**os.environ, **environment},
        # Not where the tests run: there the tree would be found before what is installed.
        cwd=dump_dir.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
