"""Who may take captures out of a dump directory: one drain, or any number of extracts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hs_capture.errors import ConfigError


@contextmanager
def claim(directory: Path, *, alone: bool) -> Iterator[None]:
    """Hold `directory` for a block, `alone` or beside others that do not want it alone.

    The kernel lets go of it when this process ends, however it ends. Raises `ConfigError` when
    another process holds it in a way that does not go together with this one.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{directory} is in use by another hs-capture drain or extract: wait until it "
                "has ended, or stop it"
            ) from None
        yield
    finally:
        os.close(descriptor)
