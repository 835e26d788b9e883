"""Are captures right in themselves? Every block is read, and every claim held against the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from hs_capture.errors import FormatError
from hs_capture.format.container import ContainerReader
from hs_capture.format.footer import Stream
from hs_capture.format.metadata import (
    INPUT_IDS,
    TOLD_BY_INDEX_TOO,
    TOLD_BY_RUN_TOO,
    CaptureMetadata,
    layer_stream,
)
from hs_capture.intervals import subtract, union
from hs_capture.numbers import any_nonzero, count_not_finite

if TYPE_CHECKING:
    from hs_capture.format.index import IndexEntry
    from hs_capture.format.run import RunInfo


@dataclass(frozen=True)
class Examined:
    """One capture file that was read as a whole. `problem` is None when all of it is right."""

    path: str
    stored_bytes: int
    incomplete_reason: str | None
    problem: str | None


def newest_files(run: Path, limit: int | None) -> Iterator[str]:
    """The capture files of a run, newest first, at most `limit` (None: all).

    Names begin with the sequence number, and so do the folders, so a sample of a million captures
    lists only the last folder.
    """
    left = -1 if limit is None else limit
    folders = sorted((path for path in run.iterdir() if path.name.isdecimal()), reverse=True)
    for folder in folders:
        for path in sorted(folder.glob("*.hsc"), reverse=True):
            if left == 0:
                return
            left -= 1
            yield str(path)


def examine(
    path: str, entry: IndexEntry | None = None, run: RunInfo | None = None
) -> Examined | None:
    """Read one capture whole and judge it; None when it was taken away meanwhile.

    It is held against its line in the index, `entry` (as it stands there, without the rows of other
    captures), and against its `run`, where they are given.
    """
    try:
        with ContainerReader(path) as reader:
            size = reader.size
            try:
                metadata = CaptureMetadata.from_object(reader.metadata, f"{path}: metadata")
                problems = chain(_strange(metadata, entry, run), _problems(reader, metadata))
                problem = next(problems, None)
            except FormatError as error:
                return Examined(path, size, None, str(error))
            named = None if problem is None else f"{path}: {problem}"
            return Examined(path, size, metadata.incomplete_reason, named)
    except FileNotFoundError:
        return None
    except FormatError as error:
        return Examined(path, 0, None, str(error))
    except OSError as error:
        return Examined(path, 0, None, f"{path}: cannot be read: {error.strerror}")


def _strange(
    metadata: CaptureMetadata, entry: IndexEntry | None, run: RunInfo | None
) -> Iterator[str]:
    """What the file says otherwise than index and run do: it is another one than belongs here."""
    for other, names, place in (
        (entry, TOLD_BY_INDEX_TOO, "the index"),
        (run, TOLD_BY_RUN_TOO, "run.json"),
    ):
        for name in names if other is not None else ():
            said, expected = getattr(metadata, name), getattr(other, name)
            if name == "missing":
                said, expected = union(said), union(expected)
            if said != expected:
                yield f"{name} is {said!r}, but {place} says {expected!r}"


def _problems(reader: ContainerReader, metadata: CaptureMetadata) -> Iterator[str]:
    states = [layer_stream(layer) for layer in metadata.layer_ids]
    states += [f"final.{norm}" for norm in metadata.final]
    for name in (INPUT_IDS, *states):
        if name not in reader.streams:
            yield f"stream {name!r} is missing"
    if metadata.rows_behind not in (0, 1):
        yield f"rows_behind is {metadata.rows_behind}, not 0 or 1"
    for stream in reader.streams.values():
        yield from _shape_problems(reader, stream, metadata)
    linked = [(start, stop) for start, stop, _ in metadata.links]
    ends = [end for link in linked for end in link]
    if (
        ends != sorted(ends)
        or any(start == stop for start, stop in linked)
        or union([*linked, *metadata.missing]) != union(metadata.missing)
    ):
        yield f"links {linked} are not ascending ranges of the missing rows"
    seen: dict[str, str] = {}
    for stream in reader.streams.values():
        digest, problem = _read(reader, stream)
        if problem:
            yield f"stream {stream.name!r}: {problem}"
        if stream.name == INPUT_IDS or not stream.blocks:
            continue
        if digest in seen:
            # Two layers that agree in every bit mean that one tensor was stored twice.
            yield f"streams {seen[digest]!r} and {stream.name!r} hold the same values"
        seen[digest] = stream.name


def _shape_problems(
    reader: ContainerReader, stream: Stream, metadata: CaptureMetadata
) -> Iterator[str]:
    place = f"stream {stream.name!r}"
    rows = metadata.num_tokens + metadata.rows_behind
    if stream.rows != rows:
        behind = " and one row behind them" if metadata.rows_behind else ""
        tokens = f"{metadata.num_tokens} tokens{behind}"
        yield f"{place} has {stream.rows} rows, the capture has {tokens}"
    whole = (0, rows)
    if stream.name == INPUT_IDS:
        missing = subtract(whole, reader.covered(INPUT_IDS))
        if missing:
            yield f"{place}: token ids {missing} are missing"
        return
    if stream.shape[1:] != (metadata.hidden_size,):
        yield f"{place} has shape {list(stream.shape)}, the hidden size is {metadata.hidden_size}"
    if stream.dtype != metadata.dtype:
        yield f"{place} is {stream.dtype}, the capture says {metadata.dtype}"
    missing = subtract(whole, reader.covered(stream.name))
    if missing != [tuple(pair) for pair in metadata.missing]:
        yield f"{place} lacks rows {missing}, the capture says {list(metadata.missing)}"
    if metadata.complete and missing:
        yield f"{place} lacks rows {missing}, and the capture says it is complete"


def _read(reader: ContainerReader, stream: Stream) -> tuple[str, str | None]:
    """Read a stream block by block: the digest of its values, and what is wrong with them."""
    digest = xxhash.xxh3_128()
    nonzero = stream.name == INPUT_IDS or not stream.blocks
    not_finite = 0
    for block in stream.blocks:
        values = reader.read(stream.name, block.start, block.stop)
        digest.update(values.data)
        not_finite += count_not_finite(values, stream.dtype)
        nonzero = nonzero or any_nonzero(values, stream.dtype)
    problem = None
    if not_finite:
        problem = f"{not_finite} values are not finite"
    elif not nonzero:
        problem = "all values are zero"
    return digest.hexdigest(), problem
