"""Which captures lie under a directory: the files themselves, described by the index where it can.

The files are the truth. A file that no index names is described by its own footer, and an index
line whose file is gone describes nothing.

Paths of single captures are strings, here and wherever millions of them pass: pathlib interns each
part of each path, and a process that never stops giving the interpreter new names to intern has it
rebuild the table of all names again and again, each time in another place of the heap.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hs_capture.errors import FormatError
from hs_capture.format.container import ContainerReader
from hs_capture.format.index import IndexEntry, read_index
from hs_capture.format.links import Source, Sources
from hs_capture.format.metadata import INPUT_IDS, CaptureMetadata
from hs_capture.format.run import RunInfo

SUFFIX = ".hsc"
RUN_FILE = "run.json"
LOST_AND_FOUND = "lost+found"
"""Is in the top folder of a disk, which may be a store."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Catalog:
    """The captures of one run, in publish order; or those under a directory without any run."""

    directory: Path
    run: RunInfo | None
    entries: tuple[IndexEntry, ...]
    """Those with links as they are with the rows of the other captures that are there."""
    sources: Sources

    def path_of(self, entry: IndexEntry | Source) -> str:
        """Where the file of `entry` is."""
        return os.path.join(self.directory, str(entry.file))

    def sources_of(self, entry: IndexEntry) -> tuple[Source, ...]:
        """Which rows of `entry` are in other captures' files, with the paths of these."""
        return tuple(
            replace(source, file=self.path_of(source)) for source in self.sources.of(entry)
        )


def find_catalogs(path: Path) -> list[Catalog]:
    """The catalogs under `path`, oldest run first; captures that belong to no run come before.

    Hidden folders inside it and lost+found are passed over. It is safe while a server writes there:
    what is published meanwhile is seen or not, as a whole.

    Raises `FormatError` for a damaged run.json, and for a damaged file that no index names.
    """
    catalogs = []
    loose: list[str] = []
    for folder, subfolders, names in _walk(path):
        if RUN_FILE in names:
            catalogs.append(_catalog_of_run(Path(folder)))
            subfolders.clear()
        else:
            loose += _captures(folder, names, path)
    if loose:
        # Several runs may have been put together here, so only the time can order them.
        entries = sorted(_described(path, loose), key=lambda e: (e.published, e.sequence, e.file))
        catalogs.append(_catalog(path, None, entries, Sources.among(())))
    return sorted(catalogs, key=_age)


def _age(catalog: Catalog) -> tuple[float, str]:
    return (catalog.run.created, catalog.run.run_id) if catalog.run else (-math.inf, "")


def _catalog_of_run(directory: Path) -> Catalog:
    # First the index, then the files: the other way round, a file that is published in between
    # would look like one that is gone.
    indexed = {entry.file: entry for entry in _indexed(directory)}
    files = list(capture_files(directory))
    entries = [indexed[file] for file in files if file in indexed]
    entries += _described(directory, (file for file in files if file not in indexed))
    # Last, because it grows before a capture with changed weights is published.
    run = RunInfo.read(directory / RUN_FILE)
    entries.sort(key=lambda e: (e.sequence, e.file))
    return _catalog(directory, run, entries, Sources.among(entries))


def _catalog(
    directory: Path, run: RunInfo | None, entries: Iterable[IndexEntry], sources: Sources
) -> Catalog:
    return Catalog(directory, run, tuple(map(sources.resolved, entries)), sources)


def runs_in(directory: Path) -> list[Path]:
    """The folders of the runs directly in `directory`, by name; itself where it is one.

    Hidden folders and lost+found are passed over. Raises the `OSError` of a directory that is not
    there, or that may not be looked into.
    """
    if (directory / RUN_FILE).is_file():
        return [directory]
    folders = sorted(path for path in directory.iterdir() if may_hold_captures(path.name))
    return [path for path in folders if (path / RUN_FILE).is_file()]


def capture_files(directory: Path) -> Iterator[str]:
    """The capture files under `directory`, relative to it, in no order."""
    for folder, _, names in _walk(directory):
        yield from _captures(folder, names, directory)


def _indexed(directory: Path) -> Iterable[IndexEntry]:
    for path in sorted(directory.glob("index-*.jsonl")):
        yield from _readable(path)


def _readable(index: Path) -> list[IndexEntry]:
    try:
        return read_index(index)
    except FormatError as error:
        _log.warning("index passed over, capture files are read instead: %s", error)
        return []


def _described(directory: Path, files: Iterable[str]) -> Iterable[IndexEntry]:
    for file in files:
        # A file may have been taken away by its consumer since it was listed.
        with suppress(FileNotFoundError):
            yield describe(directory, file)


def describe(directory: Path, file: str) -> IndexEntry:
    """The index entry of the capture at `file` under `directory`, from the capture's own footer."""
    with ContainerReader(os.path.join(directory, file)) as reader:
        metadata = CaptureMetadata.from_object(reader.metadata, f"{reader.path}: metadata")
        return IndexEntry(
            sequence=metadata.sequence,
            file=file,
            rid=metadata.rid,
            num_tokens=metadata.num_tokens,
            rows=metadata.num_tokens - sum(stop - start for start, stop in metadata.missing),
            complete=metadata.complete,
            incomplete_reason=metadata.incomplete_reason,
            missing=metadata.missing,
            raw_bytes=sum(s.raw_bytes for s in reader.streams.values() if s.name != INPUT_IDS),
            stored_bytes=reader.size,
            published=metadata.captured_at,
            key=metadata.key,
            weights_version=metadata.weights_version,
            lora=metadata.lora,
            links=metadata.links,
            prompt_tokens=metadata.prompt_tokens,
            rows_behind=metadata.rows_behind,
        )


def is_there(path: str) -> bool:
    """Whether there is a file; unlike `os.path.exists` an `OSError` where that cannot be told."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _captures(folder: str, names: list[str], directory: Path) -> list[str]:
    """The capture files among the `names` in `folder`, relative to `directory`."""
    inside = Path(folder).relative_to(directory).as_posix()
    prefix = "" if inside == "." else f"{inside}/"
    return [prefix + name for name in names if name.endswith(SUFFIX)]


def may_hold_captures(folder: str) -> bool:
    """Whether a folder of this name in a store may have captures of it.

    Not the hidden ones, a file system's snapshots and a desktop's wastebasket among them, and not
    what fsck finds, which only root may list.
    """
    return not folder.startswith(".") and folder != LOST_AND_FOUND


def _walk(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each folder with its subfolders and its files; who takes subfolders out does not go there."""
    for folder, subfolders, names in os.walk(directory, onerror=_raise_unless_gone):
        subfolders[:] = filter(may_hold_captures, subfolders)
        yield folder, subfolders, names


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
