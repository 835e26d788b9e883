"""What the demo shows on the terminal: how far it is, tables, and the commands that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Progress:
    """One line on the terminal that is written over; a few lines where there is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.monotonic()
        self._told = self._started
        self._live = sys.stdout.isatty()
        print(f"-- {what}", end="" if self._live else "\n", flush=True)

    def at(self, detail: str = "") -> None:
        """Show how far it is."""
        now = time.monotonic()
        if now - self._told >= (0.2 if self._live else 10):
            self._told = now
            self._show(f"{detail} {now - self._started:.0f} s".strip(), "")

    def done(self, detail: str) -> None:
        """Show the result; nothing more comes."""
        self._show(f"{detail}, {time.monotonic() - self._started:.1f} s", "\n")

    def _show(self, detail: str, end: str) -> None:
        if self._live:
            print(f"\r\033[K-- {self._what}: {detail}", end=end, flush=True)
        else:
            print(f"   {detail}", flush=True)


def run_shown(
    words: Sequence[str], options: Mapping[str, object], folder: Path, **more: str
) -> int:
    """Run a command of the installed package in ``folder``, and return its exit code.

    The command is shown as one would type it in that folder; its output goes to the terminal.
    ``more`` are environment variables.
    """
    texts = [str(text) for pair in options.items() for text in pair]
    print("-- " + " ".join([*words, *texts]).replace(f"{folder}/", ""), flush=True)
    known = {"python": sys.executable, "hs-capture": str(Path(sys.executable).parent / words[0])}
    # Not in the checkout: its package would come before the installed one.
    return subprocess.run(
        [known[words[0]], *words[1:], *texts], env={**os.environ, **more}, cwd=folder, check=False
    ).returncode


def print_rows(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
    """Print a table of two columns."""
    print(f"\n{head[0]:<24}{head[1]}".rstrip())
    print("-" * 56)
    for name, value in rows:
        print(f"{name:<24}{value}")
    print("-" * 56)
