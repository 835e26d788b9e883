"""Lossless packing of one block of elements: byte planes, some of them through zstandard.

Plane i holds byte i (little-endian) of every element. In hidden states the sign and the upper
exponent bits share the last plane and compress well; the mantissa bits are noise and are stored as
they are. Which planes are worth trying is fixed per element type.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import zstandard

from hs_capture.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_BLOCK_BYTES = 1 << 28
"""No block holds more raw bytes, so a damaged length can never ask for absurd memory."""


@dataclass(frozen=True)
class DType:
    """An element type: its name, its size in bytes, the NumPy type that carries its bits, the
    unsigned type of the same size, and the planes that are tried for compression."""

    name: str
    itemsize: int
    carrier: np.dtype[Any]
    word: np.dtype[Any]
    compressed: tuple[int, ...]


def _dtypes() -> dict[str, DType]:
    floats: dict[str, tuple[str, tuple[int, ...]]] = {
        "float16": ("<f2", (1,)),
        "bfloat16": ("<u2", (1,)),
        "float32": ("<f4", (3,)),
        "float64": ("<f8", (7,)),
        "float8_e4m3fn": ("u1", ()),
        "float8_e4m3fnuz": ("u1", ()),
        "float8_e5m2": ("u1", ()),
        "float8_e5m2fnuz": ("u1", ()),
        "bool": ("?", (0,)),
    }
    integers = {
        f"{kind}{8 * size}": (f"<{kind[0]}{size}", tuple(range(size)))
        for kind in ("int", "uint")
        for size in (1, 2, 4, 8)
    }
    table: dict[str, DType] = {}
    for name, (code, planes) in (floats | integers).items():
        carrier = np.dtype(code)
        word = np.dtype(f"<u{carrier.itemsize}")
        table[name] = DType(name, carrier.itemsize, carrier, word, planes)
    return table


_DTYPES = _dtypes()


def dtype_of(name: str) -> DType:
    """The element type called `name`; `FormatError` for a name that this format does not have."""
    try:
        return _DTYPES[name]
    except (KeyError, TypeError):
        raise FormatError(f"unknown dtype {name!r}; known are {', '.join(_DTYPES)}") from None


@dataclass(frozen=True)
class Encoded:
    """`count` elements of type `dtype` as they are stored: one buffer a plane.

    A plane of `count` bytes is raw, a shorter one is a zstandard frame. Raw planes may be views of
    the memory that was encoded: it must stay as it is until they are written.
    """

    dtype: str
    count: int
    planes: tuple[Buffer, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The stored length of each plane in bytes."""
        return tuple(len(plane) for plane in self.planes)

    @property
    def stored_bytes(self) -> int:
        return sum(self.lengths)

    @property
    def raw_bytes(self) -> int:
        return self.count * len(self.planes)


def encode(data: NDArray[Any] | Buffer, dtype: str) -> Encoded:
    """Pack an array of any shape and strides, or a buffer of little-endian elements.

    An array must have the carrier type of `dtype` (for bfloat16 that is uint16). Raises
    `ValueError` when it has not, or when a buffer holds no whole number of elements.
    """
    kind = dtype_of(dtype)
    if isinstance(data, np.ndarray):
        if data.dtype != kind.carrier:
            raise ValueError(f"{dtype} is carried by {kind.carrier}, got an array of {data.dtype}")
        words = np.ascontiguousarray(data).reshape(-1).view(kind.word)
    elif (size := memoryview(data).nbytes) % kind.itemsize:
        raise ValueError(f"{size} bytes are no whole number of {dtype} elements")
    else:
        words = np.frombuffer(data, kind.word)
    return encode_planes([_plane(words, number) for number in range(kind.itemsize)], dtype)


def _plane(words: NDArray[Any], number: int) -> memoryview:
    """Byte `number` of each word.

    Shifts of whole words are several times as fast as strided access to single bytes.
    """
    plane = np.empty(words.shape, np.uint8)
    np.right_shift(words, 8 * number, out=plane, casting="unsafe")
    return plane.data


def encode_planes(planes: Sequence[Buffer], dtype: str) -> Encoded:
    """Pack data whose byte planes are already apart: `planes[i]` is byte i of every element.

    Raises `ValueError` when there is not one plane a byte, or when their lengths differ.
    """
    kind = dtype_of(dtype)
    lengths = {len(plane) for plane in planes}
    if len(planes) != kind.itemsize or len(lengths) != 1:
        raise ValueError(
            f"{dtype} needs {kind.itemsize} planes of one length, "
            f"got lengths {[len(plane) for plane in planes]}"
        )
    return Encoded(
        dtype,
        lengths.pop(),
        tuple(
            _compress(plane) if number in kind.compressed else plane
            for number, plane in enumerate(planes)
        ),
    )


def decode(stored: Buffer, lengths: Sequence[int], dtype: str, count: int) -> NDArray[Any]:
    """Unpack `count` elements from planes of the given stored lengths, back to back in `stored`.

    Returns a fresh one-dimensional array of the carrier type. Raises `FormatError` when the bytes
    are not what `encode` could have written; no more than the block itself is ever allocated.
    """
    kind = dtype_of(dtype)
    view = memoryview(stored)
    if len(lengths) != kind.itemsize or sum(lengths) != len(view):
        raise FormatError(f"{len(view)} bytes are not {kind.itemsize} planes of {list(lengths)}")
    if not 0 <= count * kind.itemsize <= MAX_BLOCK_BYTES:
        raise FormatError(f"{count} elements of {dtype} do not fit {MAX_BLOCK_BYTES} bytes")
    words = np.zeros(count, kind.word)
    begin = len(view)
    for number, length in reversed(list(enumerate(lengths))):
        begin -= length
        plane: Buffer = view[begin : begin + length]
        if length != count:
            if not (0 <= length < count and number in kind.compressed):
                raise FormatError(f"plane {number} has {length} bytes for {count} elements")
            plane = _decompress(plane, count, number)
        if kind.itemsize > 1:
            words <<= 8
        words |= np.frombuffer(plane, np.uint8)
    return words.view(kind.carrier)


def rows_per_block(row_bytes: int, target: int = 512 * 1024) -> int:
    """How many rows of `row_bytes` bytes make a block of about `target` bytes; at least 1.

    Blocks of this size cost nothing in ratio, and bound what a small read has to decode.
    """
    return max(1, target // max(1, row_bytes))


# zstandard objects are not thread-safe, so every thread has its own pair.
_local = threading.local()


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        # Match finding is all but switched off: exponent bytes hardly repeat in runs, so a match
        # costs more than the entropy coder needs for the same bytes. Faster, and smaller.
        _local.compressor = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(
                1,
                strategy=zstandard.STRATEGY_FAST,
                min_match=7,
                hash_log=6,
                window_log=17,
                write_content_size=True,
                write_checksum=False,
            )
        )
    compressor: zstandard.ZstdCompressor = _local.compressor
    return compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _local.decompressor
    return decompressor


def _compress(plane: Buffer) -> Buffer:
    frame = _compressor().compress(plane)
    return frame if len(frame) < len(plane) else plane


def _decompress(frame: Buffer, count: int, number: int) -> bytes:
    try:
        # The size that the frame claims is compared before zstandard allocates it.
        claimed = zstandard.frame_content_size(frame)
        if claimed != count:
            raise FormatError(f"plane {number} claims {claimed} bytes for {count} elements")
        plane = _decompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"plane {number} is no zstandard frame: {error}") from error
    if len(plane) != count:
        raise FormatError(f"plane {number} holds {len(plane)} bytes for {count} elements")
    return plane
