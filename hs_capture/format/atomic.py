"""Replace a file as a whole: a reader sees the old bytes or the new ones, never a mixture."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], data: bytes, mode: int = 0o600) -> None:
    """Write `data` to `path` with permission bits `mode`, whatever the umask is.

    The bytes go to a temporary file in the same directory first. On any error (an `OSError` such
    as a full file system) the temporary file is removed and `path` is as it was.
    """
    path = Path(path)
    descriptor, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
