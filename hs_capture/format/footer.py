"""The footer of a capture file: which streams it holds, and where their blocks are.

The bytes are specified in docs/format.md. Parsing checks everything that can be checked without
reading a block, so that the rest of the reader may trust what it is given.
"""

from __future__ import annotations

import os
import string
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
import xxhash

from hs_capture.errors import FormatError
from hs_capture.format.codec import MAX_BLOCK_BYTES, DType, dtype_of
from hs_capture.format.record import parse_json

MAGIC = b"HSCAP\x00\x00\x01"
"""The first bytes of a capture file; the last of them is the version of the format."""

END = b"HSCAPEND"
TRAILER = struct.Struct("<QQQ8s")
"""Footer offset, footer length, xxh3_64 of the footer, `END`: the last bytes of a file."""


@dataclass(frozen=True)
class Block:
    """The rows [start, stop) of a stream: their planes, stored back to back from `offset`.

    `lengths` are the stored bytes of each plane, `digest` is the xxh3_64 of all of them.
    """

    start: int
    stop: int
    offset: int
    lengths: tuple[int, ...]
    digest: str

    @property
    def stored_bytes(self) -> int:
        return sum(self.lengths)

    @property
    def end(self) -> int:
        """The offset of the first byte after the block."""
        return self.offset + self.stored_bytes


@dataclass(frozen=True)
class Stream:
    """A named array of shape [rows] or [rows, width]; its blocks ascend and never overlap."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def row_elements(self) -> int:
        """Elements in one row: the width, or 1 for a stream without one."""
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def raw_bytes(self) -> int:
        """Bytes of all rows that were stored, before packing."""
        rows = sum(block.stop - block.start for block in self.blocks)
        return rows * self.row_elements * dtype_of(self.dtype).itemsize


@dataclass(frozen=True)
class Footer:
    """What a capture file says about itself: free metadata and the streams by name."""

    metadata: dict[str, Any]
    streams: dict[str, Stream]


def digest_of(parts: Iterable[bytes | bytearray | memoryview]) -> str:
    """The xxh3_64 of `parts` taken as one run of bytes, as 16 hexadecimal digits."""
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def encode_footer(metadata: Mapping[str, object], streams: Iterable[Stream], offset: int) -> bytes:
    """Footer and trailer, to be written at `offset`, right after the last block."""
    footer = orjson.dumps(
        {
            "metadata": metadata,
            "streams": [
                {
                    "name": stream.name,
                    "dtype": stream.dtype,
                    "shape": stream.shape,
                    "blocks": [
                        (block.start, block.stop, block.offset, block.lengths, block.digest)
                        for block in stream.blocks
                    ],
                }
                for stream in streams
            ],
        }
    )
    return footer + TRAILER.pack(offset, len(footer), xxhash.xxh3_64_intdigest(footer), END)


def locate_footer(trailer: bytes, size: int, place: str) -> tuple[int, int, int]:
    """Offset, length and checksum of the footer of a file of `size` bytes, from its trailer."""
    if len(trailer) != TRAILER.size or not trailer.endswith(END):
        raise FormatError(
            f"{place}: end marker missing in the last {TRAILER.size} of {size} bytes; "
            "the file was cut short or never finished"
        )
    offset, length, checksum, _ = TRAILER.unpack(trailer)
    if offset < len(MAGIC) or offset + length + TRAILER.size != size:
        raise FormatError(
            f"{place}: trailer at byte {size - TRAILER.size}: a footer of {length} bytes "
            f"at byte {offset} does not fit a file of {size} bytes"
        )
    return offset, length, checksum


def read_trailer(path: str | os.PathLike[str]) -> bytes:
    """The trailer of the file at `path`, unchecked: its last bytes, fewer where it has no more.

    It holds the checksum of the footer, and this those of all blocks, so captures with the same
    trailer are the same. Raises `OSError` when the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TRAILER.size))
        return file.read()


def parse_footer(footer: bytes, checksum: int, offset: int, place: str) -> Footer:
    """The footer that was found at `offset`, checked; `FormatError` for anything out of order."""
    here = f"{place}: footer at byte {offset}"
    if xxhash.xxh3_64_intdigest(footer) != checksum:
        raise FormatError(f"{here}: checksum does not match its {len(footer)} bytes")
    value = parse_json(footer, here)
    if not isinstance(value, dict):
        raise FormatError(f"{here}: not a JSON object")
    metadata, entries = value.get("metadata"), value.get("streams")
    if not isinstance(metadata, dict) or not isinstance(entries, list):
        raise FormatError(f"{here}: needs an object 'metadata' and an array 'streams'")
    streams: dict[str, Stream] = {}
    for number, entry in enumerate(entries):
        stream = _parse_stream(entry, f"{here}: stream {number}")
        if stream.name in streams:
            raise FormatError(f"{here}: stream {stream.name!r} is there twice")
        streams[stream.name] = stream
    _check_tiling(streams.values(), offset, here)
    return Footer(metadata, streams)


def _parse_stream(entry: object, place: str) -> Stream:
    match entry:
        case {"name": str(name), "dtype": str(dtype), "shape": list(shape), "blocks": list(blocks)}:
            pass
        case _:
            raise FormatError(f"{place}: needs name, dtype, shape and blocks")
    place = f"{place} {name!r}"
    if len(shape) not in (1, 2) or not all(_is_count(size) for size in shape):
        raise FormatError(f"{place}: shape {shape!r} is neither [rows] nor [rows, width]")
    try:
        kind = dtype_of(dtype)
    except FormatError as error:
        raise FormatError(f"{place}: {error}") from error
    stream = Stream(name, dtype, tuple(shape), ())
    parsed = tuple(_parse_block(block, stream, kind, place) for block in blocks)
    for before, after in pairwise(parsed):
        if after.start < before.stop:
            raise FormatError(
                f"{place}: rows [{after.start}, {after.stop}) follow rows "
                f"[{before.start}, {before.stop})"
            )
    return Stream(name, dtype, tuple(shape), parsed)


def _parse_block(entry: object, stream: Stream, kind: DType, place: str) -> Block:
    match entry:
        case [int(start), int(stop), int(offset), list(lengths), str(digest)]:
            pass
        case _:
            raise FormatError(f"{place}: block {entry!r}: not [start, stop, offset, lengths, sum]")
    place = f"{place} rows [{start}, {stop})"
    if not 0 <= start < stop <= stream.rows:
        raise FormatError(f"{place}: not within the {stream.rows} rows of the stream")
    count = (stop - start) * stream.row_elements
    if count * kind.itemsize > MAX_BLOCK_BYTES:
        raise FormatError(f"{place}: a block holds at most {MAX_BLOCK_BYTES} bytes")
    if len(lengths) != kind.itemsize or not all(
        _is_count(length) and (length == count or (length < count and plane in kind.compressed))
        for plane, length in enumerate(lengths)
    ):
        raise FormatError(f"{place}: {count} {kind.name} elements cannot have planes {lengths!r}")
    if len(digest) != 16 or not set(digest) <= set(string.hexdigits):
        raise FormatError(f"{place}: checksum {digest!r} is not 16 hexadecimal digits")
    return Block(start, stop, offset, tuple(lengths), digest)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _check_tiling(streams: Iterable[Stream], end: int, place: str) -> None:
    """Blocks fill the file from the magic to the footer: no hole to hide in, no byte used twice."""
    position = len(MAGIC)
    blocks = ((block, stream.name) for stream in streams for block in stream.blocks)
    for block, name in sorted(blocks, key=lambda item: item[0].offset):
        if block.offset != position:
            raise FormatError(
                f"{place}: stream {name!r} rows [{block.start}, {block.stop}): block at byte "
                f"{block.offset}, expected at byte {position}"
            )
        position = block.end
    if position != end:
        raise FormatError(f"{place}: blocks end at byte {position}, the footer begins at {end}")
