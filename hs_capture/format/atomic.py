"""Replace a file as a whole: a reader sees the old bytes or the new ones, never a mixture."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(
    path: str | os.PathLike[str], data: bytes, mode: int = 0o600, *, durable: bool = False
) -> None:
    """Write `data` to `path` with permission bits `mode`, whatever the umask is.

    The bytes go to a temporary file in the same directory first. On any error (an `OSError` such
    as a full file system) the temporary file is removed and `path` is as it was. What is written
    `durable` is still there after a loss of power.
    """
    path = Path(path)
    descriptor, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in the folder `path` durable: what was created, renamed or removed there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
