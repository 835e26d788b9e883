"""One capture file: blocks are appended while rows arrive, the footer closes the file.

`ContainerWriter` and `ContainerReader` are the two sides of docs/format.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hs_capture.errors import FormatError, NotCapturedError
from hs_capture.format.codec import MAX_BLOCK_BYTES, Encoded, decode, dtype_of
from hs_capture.format.footer import (
    MAGIC,
    TRAILER,
    Block,
    Footer,
    Stream,
    digest_of,
    encode_footer,
    locate_footer,
    parse_footer,
)
from hs_capture.format.late_file import LateFile

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self


class ContainerWriter:
    """Writes one capture file. `add` may be called from several threads at once.

    The file must not exist; it is created when there is enough to write (see `LateFile`). An
    `OSError` while writing (a full file system) is passed on and leaves the writer broken: all that
    is left to do then is `abort`.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        self.path = os.fspath(path)
        self.raw_bytes = 0
        """Bytes of the elements added so far, before packing."""
        self._file = LateFile(self.path, mode)
        self._file.write((MAGIC,), 0)
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}
        self._blocks: dict[str, list[Block]] = {}
        self._end = len(MAGIC)

    def declare(self, stream: str, dtype: str, width: int | None = None) -> None:
        """Announce a stream of rows of `width` elements, or of single elements without a width.

        Raises `ValueError` when the stream exists already or the width is not positive.
        """
        if width is not None and width < 1:
            raise ValueError(f"stream {stream!r}: width is {width}, expected 1 or more")
        shape = (0,) if width is None else (0, width)
        with self._lock:
            if stream in self._streams:
                raise ValueError(f"stream {stream!r} is declared already")
            self._streams[stream] = Stream(stream, dtype_of(dtype).name, shape, ())
            self._blocks[stream] = []

    def add(self, stream: str, start: int, stop: int, encoded: Encoded) -> None:
        """Append the rows [start, stop) of a declared stream, in any order.

        Raises `ValueError` when `encoded` does not hold exactly these rows in the stream's type.
        """
        declared = self._streams[stream]
        count = (stop - start) * declared.row_elements
        if not 0 <= start < stop or encoded.count != count or encoded.dtype != declared.dtype:
            raise ValueError(
                f"stream {stream!r} rows [{start}, {stop}): expected {count} {declared.dtype} "
                f"elements, got {encoded.count} {encoded.dtype}"
            )
        if encoded.raw_bytes > MAX_BLOCK_BYTES:
            raise ValueError(
                f"stream {stream!r} rows [{start}, {stop}): {encoded.raw_bytes} bytes are more "
                f"than the {MAX_BLOCK_BYTES} of one block; add fewer rows at a time"
            )
        digest = digest_of(encoded.planes)
        with self._lock:
            block = Block(start, stop, self._end, encoded.lengths, digest)
            self._end = block.end
            self._blocks[stream].append(block)
            self.raw_bytes += encoded.raw_bytes
        self._file.write(encoded.planes, block.offset)

    def cut(self, row: int) -> list[tuple[int, int]]:
        """Take back every block that reaches beyond `row`; returns the rows that are gone so.

        [start, stop) pairs in ascending order. Call it when no `add` is running any more. Raises
        the `OSError` of the file system.
        """
        gone: set[tuple[int, int]] = set()
        kept: list[tuple[str, Block]] = []
        for stream, blocks in self._blocks.items():
            declared = self._streams[stream]
            row_bytes = declared.row_elements * dtype_of(declared.dtype).itemsize
            for block in blocks:
                if block.stop > row:
                    gone.add((block.start, block.stop))
                    self.raw_bytes -= (block.stop - block.start) * row_bytes
                else:
                    kept.append((stream, block))
        if gone:
            # Blocks fill a file without a hole.
            self._blocks = {stream: [] for stream in self._blocks}
            self._end = len(MAGIC)
            for stream, block in sorted(kept, key=lambda item: item[1].offset):
                self._file.move(block.offset, self._end, block.stored_bytes)
                self._blocks[stream].append(replace(block, offset=self._end))
                self._end += block.stored_bytes
            self._file.cut(self._end)
        return sorted(gone)

    def finish(self, metadata: Mapping[str, object], rows: int) -> int:
        """Close the file as a capture of `rows` rows a stream; returns its size in bytes.

        Call it when no `add` is running any more. Rows that were never added stay missing. Raises
        `ValueError` when blocks of a stream overlap or lie beyond `rows`, and again the `OSError`
        that an `add` ran into. After any error the file is still there, to be removed by `abort`.
        """
        streams = [self._finished(stream, rows) for stream in self._streams.values()]
        end = encode_footer(metadata, streams, self._end)
        self._file.write((end,), self._end)
        self._file.close()
        return self._end + len(end)

    def abort(self) -> None:
        """Close and remove the unfinished file. Does nothing once the file is closed."""
        self._file.remove()

    def _finished(self, stream: Stream, rows: int) -> Stream:
        blocks = sorted(self._blocks[stream.name], key=lambda block: block.start)
        for before, after in pairwise(blocks):
            if after.start < before.stop:
                raise ValueError(f"stream {stream.name!r}: row {after.start} was added twice")
        if blocks and blocks[-1].stop > rows:
            raise ValueError(f"stream {stream.name!r}: row {blocks[-1].stop - 1} is beyond {rows}")
        return replace(stream, shape=(rows, *stream.shape[1:]), blocks=tuple(blocks))


class ContainerReader:
    """Reads one capture file; use it as a context manager.

    Opening checks magic, trailer and footer, reading checks the blocks it needs, each against its
    checksum. Whatever is wrong with the bytes is a `FormatError` that names the file, the place
    and the cause; a file that cannot be opened or read is an `OSError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(self._file).st_size
            """Bytes of the file."""
            footer = self._read_footer()
        except BaseException:
            self.close()
            raise
        self.metadata: dict[str, Any] = footer.metadata
        self.streams: dict[str, Stream] = footer.streams

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; reading is over, the metadata stays."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    @property
    def raw_bytes(self) -> int:
        """Bytes of all elements that the file holds, unpacked."""
        return sum(stream.raw_bytes for stream in self.streams.values())

    def covered(self, stream: str) -> list[tuple[int, int]]:
        """The rows that the stream holds, as ascending [start, stop) pairs, joined where they
        touch."""
        ranges: list[tuple[int, int]] = []
        for block in self._stream(stream).blocks:
            if ranges and ranges[-1][1] == block.start:
                ranges[-1] = (ranges[-1][0], block.stop)
            else:
                ranges.append((block.start, block.stop))
        return ranges

    def read(self, stream: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """The rows [start, stop) of a stream, all by default, as a fresh array of its carrier type.

        Shape [rows] or [rows, width]. Only blocks that hold some of these rows are read. Raises
        `NotCapturedError` for a stream or a row that the file does not hold, `IndexError` for rows
        beyond the stream.
        """
        found = self._stream(stream)
        stop = found.rows if stop is None else stop
        if not 0 <= start <= stop <= found.rows:
            raise IndexError(f"rows [{start}, {stop}) are not within {found.rows} rows")
        needed = [block for block in found.blocks if block.start < stop and block.stop > start]
        # Coverage comes before memory: a stream may claim any number of rows that nobody stored.
        self._require(found, needed, start, stop)
        rows = np.empty((stop - start, *found.shape[1:]), dtype_of(found.dtype).carrier)
        for block in needed:
            first, last = max(block.start, start), min(block.stop, stop)
            decoded = self._decode(found, block)
            rows[first - start : last - start] = decoded[first - block.start : last - block.start]
        return rows

    def check(self) -> None:
        """Read and decode every block; raises `FormatError` at the first that is damaged."""
        for stream in self.streams.values():
            for block in stream.blocks:
                self._decode(stream, block)

    def _stream(self, name: str) -> Stream:
        try:
            return self.streams[name]
        except KeyError:
            raise NotCapturedError(
                f"{self.path}: no stream {name!r}; the file holds {', '.join(self.streams)}"
            ) from None

    def _require(self, stream: Stream, blocks: list[Block], start: int, stop: int) -> None:
        position = start
        for begin, end in [*((block.start, block.stop) for block in blocks), (stop, stop)]:
            if begin > position:
                raise NotCapturedError(
                    f"{self.path}: stream {stream.name!r}: rows [{position}, {begin}) were not "
                    f"captured; captured are {self.covered(stream.name)}"
                )
            position = max(position, end)

    def _decode(self, stream: Stream, block: Block) -> NDArray[Any]:
        place = (
            f"{self.path}: stream {stream.name!r} rows [{block.start}, {block.stop}) "
            f"at byte {block.offset}"
        )
        stored = self._pread(block.stored_bytes, block.offset)
        if digest_of((stored,)) != block.digest:
            raise FormatError(f"{place}: checksum does not match")
        count = (block.stop - block.start) * stream.row_elements
        try:
            elements = decode(stored, block.lengths, stream.dtype, count)
        except FormatError as error:
            raise FormatError(f"{place}: {error}") from error
        return elements.reshape(block.stop - block.start, *stream.shape[1:])

    def _read_footer(self) -> Footer:
        place = self.path
        magic = self._pread(min(len(MAGIC), self.size), 0)
        if magic[:-1] == MAGIC[:-1] and magic != MAGIC:
            raise FormatError(
                f"{place}: format version {magic[-1]}, but this release of hs-capture reads "
                f"version {MAGIC[-1]}; read it with a newer release"
            )
        if magic != MAGIC:
            raise FormatError(f"{place}: byte 0: found {magic!r}, a capture begins with {MAGIC!r}")
        length = min(TRAILER.size, self.size)
        trailer = self._pread(length, self.size - length)
        offset, length, checksum = locate_footer(trailer, self.size, place)
        return parse_footer(self._pread(length, offset), checksum, offset, place)

    def _pread(self, length: int, offset: int) -> bytes:
        if self._file < 0:
            raise ValueError(f"{self.path}: the reader is closed")
        parts = []
        while length:
            part = os.pread(self._file, length, offset)
            if not part:
                raise FormatError(f"{self.path}: byte {offset}: file ends {length} bytes short")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
