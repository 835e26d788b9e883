"""exported.jsonl: which file of an export came from which capture, one line a published file.

With it an export goes on where it stopped: a file is done when its line is there, its size is the
one in the line, and what it was made of is still what the store has.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture.errors import ConfigError
from hs_capture.format.append import append_whole
from hs_capture.format.record import Record

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

LEDGER_FILE = "exported.jsonl"

_FORGOTTEN = -1
"""The size in a line that takes back an earlier one."""


@dataclass(frozen=True, slots=True)
class Exported(Record):
    """One line. `file` is relative to the output folder, `source` to the store; sizes in bytes.

    `origin` is the digest of what the file was made of (see `origin_of`), None in lines of early
    versions, which do not say it.
    """

    number: int
    file: str
    source: str
    id: str
    rid: str
    tokens: int
    bytes: int
    origin: str | None = None


class Ledger:
    """The ledger of one output folder, held by one export at a time. Use it as a context manager.

    It knows the lines that were there when it was opened.

    Raises `ConfigError` when another export holds it, `FormatError` for a damaged line.
    """

    def __init__(self, output: Path) -> None:
        self.path = output / LEDGER_FILE
        self.output = output
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise ConfigError(f"{output}: another export is writing there; wait for it") from None
        try:
            # By file: a file that was written again belongs to its newest line.
            newest = {line.file: line for line in self._read()}
            self._by_file = {
                file: line for file, line in newest.items() if line.bytes != _FORGOTTEN
            }
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def by_source(self) -> dict[str, Exported]:
        """The line of each capture that has a file."""
        return {line.source: line for line in self._by_file.values()}

    def files_before(self) -> set[str]:
        """The files that earlier exports have published, and this one has not replaced."""
        return set(self._by_file)

    def whole(self, line: Exported) -> bool:
        """Whether the file of `line` is there as it was published."""
        try:
            return os.path.getsize(os.path.join(self.output, line.file)) == line.bytes
        except FileNotFoundError:
            return False

    def forget(self, file: str) -> bool:
        """Record that `file` is no longer what its line says; False if it has no line."""
        line = self._by_file.pop(file, None)
        if line is None:
            return False
        self.append(replace(line, bytes=_FORGOTTEN))
        return True

    def append(self, line: Exported) -> None:
        """Record a published file; it is not held in memory.

        After an `OSError` none of the line is there.
        """
        append_whole(self._file, line.to_json() + b"\n", self.path)

    def _read(self) -> list[Exported]:
        data = self.path.read_bytes()
        keep = data.rfind(b"\n") + 1
        os.ftruncate(self._file, keep)
        return [
            Exported.from_json(line, f"{self.path}: line {number}")
            for number, line in enumerate(data[:keep].splitlines(), start=1)
        ]
