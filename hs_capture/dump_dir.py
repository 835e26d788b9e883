"""The directory that captures go to: created, or checked and refused, before the server serves.

Hidden states give prompts away, so the directory must be ours alone. Whether it can be written is
found out by writing, because permission bits do not speak of read-only mounts, quotas or root.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from hs_capture.errors import ConfigError
from hs_capture.settings import DUMP_DIR

_PROBE_BYTES = 64 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class DumpDir:
    """A directory that was found fit. `file_mode` is 0o640 where its group may read, else 0o600."""

    path: Path
    file_mode: int

    @property
    def directory_mode(self) -> int:
        """The mode of the folders inside: the file mode with search permission beside each read."""
        return 0o750 if self.file_mode & stat.S_IRGRP else 0o700


def prepare(path: Path) -> DumpDir:
    """Create `path` (missing parents too, 0700) or check it, and prove that it can be written.

    Safe to call from several processes at once; leaves nothing behind but the directory. Raises
    ConfigError, one line, when the path is a symbolic link or no directory, belongs to another
    user, may be written by everybody, or does not take a small file (read-only, full, no right).
    """
    _create(path)
    file_mode = _check(path)
    _probe(path)
    return DumpDir(path, file_mode)


def judge(path: Path) -> DumpDir:
    """The checks of `prepare` on a directory that exists; neither creates nor writes anything.

    Raises ConfigError like `prepare`, also when the directory is missing.
    """
    return DumpDir(path, _check(path))


def _refuse(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{DUMP_DIR}={str(path)!r} {reason}")


def _create(path: Path) -> None:
    missing: list[Path] = []
    for place in (path, *path.parents):
        if os.path.lexists(place):
            break
        missing.append(place)
    try:
        for place in reversed(missing):
            # Another rank may be faster; what is there then is judged like anything found.
            place.mkdir(0o700, exist_ok=True)
    except OSError as error:
        raise _refuse(path, f"cannot be created: {_explain(error)}") from error


def _check(path: Path) -> int:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise _refuse(path, f"cannot be looked at: {_explain(error)}") from error
    if stat.S_ISLNK(found.st_mode):
        raise _refuse(path, "is a symbolic link: give the directory it should be")
    if not stat.S_ISDIR(found.st_mode):
        raise _refuse(path, "is not a directory: remove it or choose another path")
    if found.st_uid != os.geteuid():
        raise _refuse(
            path,
            f"belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}: "
            "choose a directory of your own",
        )
    if found.st_mode & stat.S_IWOTH:
        raise _refuse(
            path,
            f"may be written by everybody (mode {stat.S_IMODE(found.st_mode):04o}): "
            "take that right away with chmod o-w, or choose another directory",
        )
    return 0o640 if found.st_mode & stat.S_IRGRP else 0o600


def _probe(path: Path) -> None:
    probe = path / f".hs-capture-probe-{os.getpid()}-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(probe, flags, 0o600)
        try:
            left = _PROBE_BYTES
            while left:
                left -= os.write(descriptor, bytes(left))
            # Some file systems find out that they are full only when the data must be placed.
            os.fsync(descriptor)
        finally:
            # Unlink first: a close that reports an error must not leave the probe behind.
            probe.unlink()
            os.close(descriptor)
    except OSError as error:
        raise _refuse(path, f"cannot be written: {_explain(error)}") from error


def _explain(error: OSError) -> str:
    if error.errno in _FULL:
        return "its file system is full: free some space or choose another directory"
    if error.errno == errno.EROFS:
        return "its file system is read-only: remount it or choose another directory"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"user {os.geteuid()} has no right to: choose a directory of your own"
    if error.errno == errno.ENOTDIR:
        return "a part of the path is not a directory: choose another path"
    if error.errno == errno.ENOENT:
        return "there is no such directory"
    return os.strerror(error.errno) if error.errno else str(error)
