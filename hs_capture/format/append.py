"""Append to a growing file all of something, or nothing of it."""

from __future__ import annotations

import errno
import os


def append_whole(
    descriptor: int, data: bytes, path: str | os.PathLike[str], *, durable: bool = False
) -> None:
    """Append `data` to the open file `descriptor`, called `path` in errors.

    After an `OSError` none of it is there: behind a torn line the next one would be torn too. What
    is written `durable` is still there after a loss of power. One thread and process at a time.
    """
    before = os.fstat(descriptor).st_size
    try:
        # A short write is how a full file system begins to say so.
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        if durable:
            os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, before)
        raise
