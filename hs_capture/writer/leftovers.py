"""What writers that were killed left behind: known by a lock that nobody holds any more."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

OPEN_FOLDER = "open"
"""The folder of a run directory that holds unfinished files."""

logger = logging.getLogger(__name__)


def hold(run_dir: Path) -> int:
    """Show that this run has a writer, for as long as the returned descriptor is open.

    A process id would say nothing to a server in another container that shares the directory; a
    lock goes with its process, however it ends. Where the file system has no locks, none is held,
    and nothing is ever removed.
    """
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):
        # It waits for a server that is just cleaning, which takes milliseconds.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_leftovers(dump_dir: Path) -> int:
    """Remove the unfinished files of runs under `dump_dir` that have no writer; return how many.

    Published files and all that belongs to a run whose writer lives are left alone. A writer that
    is just being replaced needs none of its predecessor's unfinished files.
    """
    return sum(_remove_of(file.parent) for file in sorted(dump_dir.glob("*/run.json")))


def _remove_of(run_dir: Path) -> int:
    try:
        return _remove_unlocked(run_dir)
    except OSError as error:
        logger.warning("hs-capture: %s cannot be cleaned: %s", run_dir, error)
        return 0


def _remove_unlocked(run_dir: Path) -> int:
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # There is a writer, or no way to know.
            return 0
        folder = run_dir / OPEN_FOLDER
        unfinished = [*folder.glob("*.part"), *run_dir.glob(".*.tmp")]
        for path in unfinished:
            path.unlink(missing_ok=True)
        # What somebody else put there stays, and so does the folder then.
        with suppress(OSError):
            folder.rmdir()
        if unfinished:
            text = "hs-capture: run %s was killed; unfinished files of it that were removed: %d"
            logger.warning(text, run_dir.name, len(unfinished))
        return len(unfinished)
    finally:
        os.close(descriptor)
