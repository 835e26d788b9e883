"""The codec gives back every bit, for every element type, and refuses what it did not write."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from hs_capture.errors import FormatError
from hs_capture.format.codec import (
    MAX_BLOCK_BYTES,
    Encoded,
    decode,
    dtype_of,
    encode,
    encode_planes,
    rows_per_block,
)

FLOATS = ["float16", "bfloat16", "float32", "float64"]
FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [*FLOATS, *FLOAT8, *INTEGERS, "bool"]

# Bit patterns that careless code loses: zeros of both signs, infinities, quiet and signalling NaN
# with payloads, the smallest subnormal.
PATTERNS = {
    "float16": ("<u2", [0, 0x8000, 0x7C00, 0xFC00, 0x7E01, 0x7C01, 0xFDFF, 1]),
    "bfloat16": ("<u2", [0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0x7F81, 0xFFBF, 1]),
    "float32": ("<u4", [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001, 1]),
    "float64": ("<u8", [0, 1 << 63, 0x7FF << 52, 0xFFF << 52, (0x7FF << 52) + 1, 1]),
}


def unpack(encoded: Encoded) -> NDArray[Any]:
    stored = b"".join(bytes(plane) for plane in encoded.planes)
    return decode(stored, encoded.lengths, encoded.dtype, encoded.count)


def assert_round_trip(values: NDArray[Any], dtype: str) -> None:
    encoded = encode(values, dtype)
    decoded = unpack(encoded)
    assert decoded.dtype == dtype_of(dtype).carrier
    assert decoded.tobytes() == values.tobytes()
    assert encoded.raw_bytes == values.nbytes
    assert encoded.stored_bytes <= values.nbytes


@st.composite
def strided(draw: st.DrawFn) -> tuple[str, NDArray[Any]]:
    """An array of any type and any bits, of any shape, seen through any strides."""
    dtype = draw(st.sampled_from(DTYPES))
    kind = dtype_of(dtype)
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9))
    bits = draw(npst.arrays(np.uint8, (*shape, kind.itemsize)))
    values = (
        (bits & 1).view(kind.carrier) if dtype == "bool" else bits.view(kind.carrier)
    ).reshape(shape)
    if values.ndim and draw(st.booleans()):
        values = values[:: draw(st.sampled_from([-2, -1, 1, 2, 3]))]
    return dtype, values.T if draw(st.booleans()) else values


@settings(max_examples=400, deadline=None)
@given(strided())
def test_any_array_comes_back_bit_for_bit(case: tuple[str, NDArray[Any]]) -> None:
    dtype, values = case
    assert_round_trip(values, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_keep_their_bits(dtype: str) -> None:
    code, patterns = PATTERNS[dtype]
    values = np.array(patterns * 50, code).view(dtype_of(dtype).carrier)
    assert_round_trip(values, dtype)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_all_256_float8_values_come_back(dtype: str) -> None:
    assert_round_trip(np.arange(256, dtype="u1"), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_encodes_to_nothing(dtype: str) -> None:
    encoded = encode(np.empty((0, 7), dtype_of(dtype).carrier), dtype)
    assert encoded.stored_bytes == 0
    assert unpack(encoded).shape == (0,)


def test_an_array_its_bytes_and_its_planes_encode_alike() -> None:
    values = np.arange(1000, dtype="<u2")
    planes = [(values & 0xFF).astype("u1").data, (values >> 8).astype("u1").data]
    expected = unpack(encode(values, "bfloat16")).tobytes()
    assert unpack(encode(values.tobytes(), "bfloat16")).tobytes() == expected
    assert unpack(encode_planes(planes, "bfloat16")).tobytes() == expected


def test_bfloat16_states_come_near_the_entropy_bound() -> None:
    """Gaussian states: the bound for split planes is 1.51, the noise plane is stored as it is."""
    values = np.random.default_rng(0).standard_normal(1 << 18).astype("<f4")
    encoded = encode((values.view("<u4") >> 16).astype("<u2"), "bfloat16")
    assert encoded.lengths[0] == 1 << 18
    assert 1.45 < encoded.raw_bytes / encoded.stored_bytes < 1.52


@pytest.mark.parametrize(
    ("dtype", "tried"),
    [("float16", {1}), ("bfloat16", {1}), ("float32", {3}), ("float64", {7})]
    + [(dtype, set()) for dtype in FLOAT8]
    + [("int64", set(range(8))), ("uint16", {0, 1}), ("bool", {0})],
)
def test_the_planes_that_are_compressed_are_fixed(dtype: str, tried: set[int]) -> None:
    """Readers rely on it: any other plane that is shorter than its elements is damage."""
    encoded = encode(bytes(1000 * dtype_of(dtype).itemsize), dtype)
    assert {plane for plane, length in enumerate(encoded.lengths) if length < 1000} == tried


def test_a_plane_that_does_not_shrink_is_stored_raw() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 4096).astype("u1").tobytes()
    assert encode(noise, "uint8").planes[0] == noise


def test_threads_do_not_share_a_compressor() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        values = np.random.default_rng(seed).standard_normal(20_000).astype("<f4")
        wrong.extend(
            seed
            for _ in range(40)
            if unpack(encode(values, "float32")).tobytes() != values.tobytes()
        )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_array_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16 is carried by uint16, got an array of float32"):
        encode(np.zeros(3, "<f4"), "bfloat16")
    with pytest.raises(ValueError, match="float32 is carried by float32, got an array of >f4"):
        encode(np.zeros(3, ">f4"), "float32")


def test_half_an_element_is_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes are no whole number of float16 elements"):
        encode(b"abc", "float16")


@pytest.mark.parametrize("planes", [[b"abc"], [b"abc", b"ab"], []])
def test_planes_must_match_the_type(planes: list[bytes]) -> None:
    with pytest.raises(ValueError, match="bfloat16 needs 2 planes of one length"):
        encode_planes(planes, "bfloat16")


@pytest.mark.parametrize("name", ["float4", "", "torch.float32", None])
def test_an_unknown_type_is_named(name: Any) -> None:
    with pytest.raises(FormatError, match=f"unknown dtype {name!r}; known are float16, bfloat16"):
        dtype_of(name)


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    ("stored", "lengths", "dtype", "count", "message"),
    [
        (b"abcd", [2, 1], "bfloat16", 2, "4 bytes are not 2 planes"),
        (b"abcd", [4], "bfloat16", 2, "4 bytes are not 2 planes"),
        (b"abcd", [2, 2], "bfloat16", 1, "plane 1 has 2 bytes for 1 elements"),
        (b"abc", [1, 2], "bfloat16", 2, "plane 0 has 1 bytes for 2 elements"),
        (b"abc", [2, 1], "bfloat16", 2, "plane 1 is no zstandard frame"),
        (b"", [0], "uint8", 2, "plane 0 is no zstandard frame"),
        (b"a", [1], "uint8", MAX_BLOCK_BYTES + 1, "do not fit"),
        (b"a", [1], "uint8", -1, "do not fit"),
        (frame(bytes(50)), [len(frame(bytes(50)))], "uint8", 99, "claims 50 bytes for 99"),
        (frame(bytes(99)) + b"x", [len(frame(bytes(99))) + 1], "uint8", 99, "no zstandard frame"),
        (frame(bytes(99))[:-1], [len(frame(bytes(99))) - 1], "uint8", 99, "no zstandard frame"),
    ],
)
def test_bytes_that_no_encoder_wrote_are_refused(
    stored: bytes, lengths: list[int], dtype: str, count: int, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        decode(stored, lengths, dtype, count)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(DTYPES), st.integers(0, 300), st.data())
def test_arbitrary_bytes_decode_or_raise_format_error(
    stored: bytes, dtype: str, count: int, data: st.DataObject
) -> None:
    """Nothing but `FormatError` comes out of damage, whatever the damage is."""
    planes = dtype_of(dtype).itemsize
    cuts = sorted(
        data.draw(st.lists(st.integers(0, len(stored)), min_size=planes - 1, max_size=planes - 1))
    )
    lengths = np.diff([0, *cuts, len(stored)]).tolist()
    try:
        decoded = decode(stored, lengths, dtype, count)
    except FormatError:
        return
    assert decoded.shape == (count,)


@pytest.mark.parametrize(
    ("row_bytes", "rows"), [(14336, 36), (512, 1024), (512 * 1024, 1), (1 << 30, 1), (0, 524288)]
)
def test_blocks_hold_about_half_a_megabyte_and_at_least_one_row(row_bytes: int, rows: int) -> None:
    assert rows_per_block(row_bytes) == rows
