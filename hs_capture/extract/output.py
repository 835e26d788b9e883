"""The copy of a run in the output store: captures arrive there whole, checked, and once.

In this order: a copy under a hidden name, made durable and checked; its final name; its line in
the index; and only then the source is removed. Whatever is left of these steps after a crash is
done again: a capture that has its final name already is recognised by its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hs_capture.errors import ConfigError, FormatError
from hs_capture.extract.number_set import NumberSet
from hs_capture.format.append import append_whole
from hs_capture.format.atomic import sync_folder, write_atomically
from hs_capture.format.catalog import RUN_FILE, describe, is_there
from hs_capture.format.container import ContainerReader
from hs_capture.format.footer import read_trailer
from hs_capture.format.index import IndexEntry, append_line, cut_torn_line
from hs_capture.format.permissions import create_folder, open_to_append
from hs_capture.format.run import RunInfo
from hs_capture.format.tail import IndexTail

PART = ".part"
_PIECE = 1 << 26
"""Bytes that the kernel copies at a time; a signal is seen in between."""


@dataclass(frozen=True)
class Staged:
    """A capture that was copied and checked, and has no name in the output store yet."""

    source: str
    part: str
    entry: IndexEntry


class OutputRun:
    """One run's folder in the output store. `stage` may be called from several threads at once."""

    def __init__(self, source: Path, output: Path) -> None:
        """Take up the run in the folder `source`, for the store at `output`.

        The caller sees to it that nobody else moves captures of this run. Raises `ConfigError`
        when the output store has another run of this name, `FormatError` for a damaged run.json,
        `FileNotFoundError` for a missing one.
        """
        self.source = source
        self.path = output / source.name
        self.info = RunInfo.read(source / RUN_FILE)
        make_folder(self.path, source)
        self._describe()
        for left_over in self.path.glob(f"*/.*{PART}"):
            left_over.unlink(missing_ok=True)
        self._index_path = self.path / f"index-{self.info.rank}.jsonl"
        self._index_mode = _mode(source / RUN_FILE)
        if self._index_path.exists():
            cut_torn_line(self._index_path)
        self._source_index = IndexTail(source / self._index_path.name)
        self._lost: list[IndexEntry] = []
        """Losses that were read from the source and are not in the output's index yet."""
        self._told = NumberSet()
        self._keys = NumberSet()
        """The requests that have a capture here."""
        for entry in self._entries():
            if entry.file is None:
                self._told.update([entry.sequence])
            elif entry.key is not None:
                self._keys.update([entry.key])

    def stage(self, source: str) -> Staged:
        """Copy the capture at `source` to the output's file system and check the copy.

        Raises `FormatError` for a damaged capture, `FileNotFoundError` for one that is gone,
        another `OSError` when the copy cannot be made. Nothing is left behind then.
        """
        file = os.path.relpath(source, self.source)
        folder, name = os.path.split(os.path.join(self.path, file))
        make_folder(folder, os.path.dirname(source))
        part = os.path.join(folder, f".{name}{PART}")
        try:
            _copy(source, part)
            try:
                check(part)
                entry = describe(self.path, os.path.relpath(part, self.path))
            except FormatError as error:
                # The words should be of the file that is there to be looked at.
                check(source)
                raise FormatError(f"{source}: its copy was damaged on the way: {error}") from error
        except BaseException:
            _remove(part)
            raise
        return Staged(source, part, replace(entry, file=file))

    def discard(self, staged: Staged) -> None:
        """Drop a copy that is not wanted; the source stays."""
        _remove(staged.part)

    def commit(self, staged: Sequence[Staged]) -> list[IndexEntry]:
        """Give the copies their final names and index them; they are durable on return.

        The sources stay; see `remove_sources`. To be called by one thread at a time. After an
        `OSError` some of the captures may have their names; staging and committing all of them
        again is right.
        """
        # The server adds the norm of changed weights before it publishes what they computed.
        if any(self.info.norm_of(item.entry.weights_version) is None for item in staged):
            self._describe()
        named = []
        lines = []
        for item in staged:
            entry, there = self._name(item)
            named.append(entry)
            if not (there and self._is_indexed(str(entry.file))):
                lines.append(entry)
        for folder in {os.path.dirname(item.part) for item in staged}:
            sync_folder(folder)
        self._append(lines)
        self._keys.update(entry.key for entry in named if entry.key is not None)
        return named

    def carry_losses(self) -> int:
        """Tell the output's index of requests that the server gave up without a file.

        Returns how many there were since this was last called. After an `OSError` none of them is
        told, and the next call tells them all.
        """
        self._read_losses()
        new = [entry for entry in self._lost if not self._is_known(entry)]
        self._append(new)
        self._told.update(entry.sequence for entry in new)
        self._lost.clear()
        return len(new)

    def _read_losses(self) -> None:
        while True:
            # A broken line is verify's to report; the next read goes on behind it.
            with suppress(FormatError):
                for entry in self._source_index.read():
                    if entry.file is None:
                        self._lost.append(entry)
                return

    def _is_known(self, lost: IndexEntry) -> bool:
        """Whether a loss was told before, or is none: a capture that was moved before the writer
        could index it is taken for lost by the writer's successor."""
        return lost.sequence in self._told or (lost.key is not None and lost.key in self._keys)

    def _describe(self) -> None:
        """Bring the output's run.json up to the source's, which grows when weights are changed."""
        ours, theirs = self.path / RUN_FILE, self.source / RUN_FILE
        described = theirs.read_bytes()
        self.info = RunInfo.from_json(described, str(theirs))
        if ours.exists():
            there = RunInfo.read(ours)
            if replace(there, norms=self.info.norms, notes=self.info.notes) != self.info:
                raise ConfigError(
                    f"{ours} is of another run than {theirs}, and both have the same name: give "
                    "another output directory"
                )
            if there == self.info:
                return
        write_atomically(ours, described, _mode(theirs), durable=True)

    def _name(self, item: Staged) -> tuple[IndexEntry, bool]:
        """Publish one copy; tell its entry, and whether it had been published before.

        A name that another capture has was given twice by the server, whose writer died.
        """
        wanted = str(item.entry.file)
        file, number = wanted, 0
        while is_there(path := os.path.join(self.path, file)):
            if _same(path, item.part):
                os.replace(item.part, path)
                return replace(item.entry, file=file), True
            number += 1
            stem, suffix = os.path.splitext(wanted)
            file = f"{stem}.{number}{suffix}"
        os.rename(item.part, path)
        return replace(item.entry, file=file), False

    def _is_indexed(self, file: str) -> bool:
        return any(entry.file == file for entry in self._entries())

    def _entries(self) -> Iterable[IndexEntry]:
        with suppress(FormatError):
            # Readers pass over a broken index and read the files.
            yield from IndexTail(self._index_path).read()

    def _append(self, entries: Iterable[IndexEntry]) -> None:
        data = b"".join(map(append_line, entries))
        if data:
            append_durably(self._index_path, data, self._index_mode)


def remove_sources(staged: Iterable[Staged]) -> None:
    """Remove what was committed from where it came."""
    for item in staged:
        _remove(item.source)


def _remove(path: str) -> None:
    """Remove a file that may be gone already."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def check(path: str) -> None:
    """Read the whole capture at `path`; `FormatError` if any of it is damaged."""
    with ContainerReader(path) as reader:
        reader.check()


def append_durably(path: Path, data: bytes, mode: int) -> None:
    """Append whole lines to a file; all of them are there on return, or none after an `OSError`."""
    created = not path.exists()
    descriptor = open_to_append(path, mode)
    try:
        append_whole(descriptor, data, path, durable=True)
    finally:
        os.close(descriptor)
    if created:
        sync_folder(path.parent)


def make_folder(path: str | Path, like: str | Path) -> None:
    """Create the folder `path`, with its parents, durably; whoever may read `like` may read it."""
    if os.path.isdir(path):
        return
    parent = Path(path).parent
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        create_folder(path, _mode(like) & 0o750)
    sync_folder(parent)


def _mode(path: str | Path) -> int:
    return os.stat(path).st_mode & 0o777


def _copy(source: str, part: str) -> None:
    """Copy a file and its mode, and make the bytes durable."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as reading:
        writing = os.open(part, flags, 0o600)
        try:
            os.fchmod(writing, _mode(source))
            while os.sendfile(writing, reading.fileno(), None, _PIECE):
                pass
            os.fsync(writing)
        except OSError as error:
            # sendfile names no file, and a full disk should be known by its name.
            raise OSError(error.errno, error.strerror, part) from error
        finally:
            os.close(writing)


def _same(one: str, other: str) -> bool:
    """Whether two captures are the same: their ends hold the checksum of all checksums."""
    same_size = os.path.getsize(one) == os.path.getsize(other)
    return same_size and read_trailer(one) == read_trailer(other)
