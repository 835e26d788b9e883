"""`hs-capture drain`: captures go from memory to durable storage."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture import arguments
from hs_capture.counted import count_text
from hs_capture.extract.failure import FAILED, told
from hs_capture.extract.sizes import human

if TYPE_CHECKING:
    from typing_extensions import Self

    from hs_capture.extract.drain import Drain, Moved

_DESCRIPTION = """\
Move finished captures from the dump directory of a server to durable storage, while the server
runs. A capture is copied, made durable, checked and published before its source is removed. It may
be killed at any time and started again: nothing is lost, and nothing is there twice.
Exit code 0: all moved; 1: damaged captures stay; 2: it cannot go on, with the reason; 4: wrong
usage; 130: ended by Ctrl-C before all was moved."""

SUMMARY = "move finished captures to durable storage while the server runs"

REPORT_SECONDS = 10.0

_ENDS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--store",
        type=arguments.path,
        required=True,
        metavar="DUMP",
        help="the dump directory of the server, or one run in it",
    )
    parser.add_argument(
        "--output",
        type=arguments.path,
        required=True,
        metavar="DIR",
        help="the store that captures go to, on durable storage",
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on until Ctrl-C, also over restarts of the server"
    )
    parser.add_argument(
        "--workers",
        type=arguments.count,
        default=4,
        metavar="N",
        help="captures to copy and check at a time (default: 4)",
    )
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    with told("drain"):
        return _drain(parsed.store, parsed.output, parsed.workers, follow=parsed.follow)


def _drain(store: Path, output: Path, workers: int, *, follow: bool) -> int:
    from hs_capture.extract.claim import claim
    from hs_capture.extract.drain import Drain, run_folders
    from hs_capture.format.catalog import RUN_FILE

    if not run_folders(store) and not follow:
        print(f"nothing to move: {store} holds no run")
        return 0
    # Two drains of one run must meet, whether they were given the run or the directory around it.
    dump = store.parent if (store / RUN_FILE).is_file() else store
    with claim(dump, alone=True), _Ending() as ending:
        drain = Drain(store, output, workers, say=lambda text: print(text, file=sys.stderr))
        report = _Report(drain, ending)
        try:
            if follow:
                drain.follow(report)
                # What the server has finished by now is worth having, too.
                drain.drain()
            else:
                drain.drain(report)
                if ending.asked:
                    raise KeyboardInterrupt
        finally:
            print(_summary(drain.moved, output), flush=True)
    return FAILED if drain.moved.damaged else 0


class _Ending:
    """Ctrl-C and SIGTERM within a block: the first of them only asks for the end.

    An exception would come anywhere, also where the pool of threads is just taking a lock. The next
    signal interrupts all the same.
    """

    asked = False

    def __enter__(self) -> Self:
        self._before = [signal.signal(number, self._ask) for number in _ENDS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(_ENDS, self._before, strict=True):
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked = True
        for number in _ENDS:
            signal.signal(number, signal.default_int_handler)


class _Report:
    """Says now and then what was moved, and whether nobody has asked for the end."""

    def __init__(self, drain: Drain, ending: _Ending) -> None:
        self._drain, self._ending = drain, ending
        self._said = 0
        self._said_at = time.monotonic()

    def __call__(self) -> bool:
        moved = self._drain.moved
        now = time.monotonic()
        if moved.captures > self._said and now - self._said_at >= REPORT_SECONDS:
            print(_summary(moved, self._drain.output), flush=True)
            self._said, self._said_at = moved.captures, now
        return not self._ending.asked


def _summary(moved: Moved, output: Path) -> str:
    captures = count_text(moved.captures, "capture")
    parts = [f"moved {captures} ({human(moved.stored_bytes)}) to {output}"]
    if moved.linked:
        parts.append(f"{moved.linked:,} with rows of others")
    if moved.incomplete:
        parts.append(f"{moved.incomplete:,} incomplete")
    if moved.lost:
        parts.append(count_text(moved.lost, "request has no file", "requests have no file"))
    if moved.damaged:
        stay = "damaged one stays where it is", "damaged ones stay where they are"
        parts.append(count_text(len(moved.damaged), *stay))
    return ", ".join(parts)
