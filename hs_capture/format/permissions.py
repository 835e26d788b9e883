"""Folders and growing files that may be read by whoever may read the captures."""

from __future__ import annotations

import os
from pathlib import Path

_APPENDING = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def create_folder(path: str | Path, mode: int) -> None:
    """Create the folder `path` with permission bits `mode`, whatever the umask is.

    Raises:
        FileExistsError: it is there already, and left as it is.
    """
    os.mkdir(path, mode)
    # What the folder got besides, from the one that it is in, stays: files inherit the group so.
    os.chmod(path, os.stat(path).st_mode & 0o7777 | mode)


def open_to_append(path: str | Path, mode: int) -> int:
    """Return a descriptor to append to the file `path`, to read it, and to truncate it.

    A file that is not there is created with permission bits `mode`, whatever the umask is.
    """
    try:
        descriptor = os.open(path, _APPENDING | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, _APPENDING, mode)
    os.fchmod(descriptor, mode)
    return descriptor
