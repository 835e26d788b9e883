"""A capture file gives back what was put in, whole or in parts, and reads no more than it must."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_files import states, write_container
from hs_capture.errors import FormatError, NotCapturedError
from hs_capture.format import late_file
from hs_capture.format.codec import MAX_BLOCK_BYTES, Encoded, encode
from hs_capture.format.container import ContainerReader, ContainerWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.hsc"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64"]
)
def test_streams_come_back_as_they_were(path: Path, dtype: str) -> None:
    values = states(10, 4, "float32").astype("<i8") if dtype == "int64" else None
    values = states(10, 4, dtype) if values is None else values
    ids = np.arange(10, dtype="<i8")
    size = write_container(path, {"input_ids": ("int64", ids), "s": (dtype, values)}, {"rid": "é"})
    assert path.stat().st_size == size
    with ContainerReader(path) as reader:
        assert reader.size == size
        assert reader.metadata == {"rid": "é"}
        assert reader.raw_bytes == ids.nbytes + values.nbytes
        assert list(reader.streams) == ["input_ids", "s"]
        assert (reader.streams["s"].dtype, reader.streams["s"].shape) == (dtype, (10, 4))
        assert reader.streams["input_ids"].shape == (10,)
        assert reader.read("s").tobytes() == values.tobytes()
        assert reader.read("s").shape == (10, 4)
        assert reader.read("input_ids").tolist() == list(range(10))
        assert reader.covered("s") == [(0, 10)]
        reader.check()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_row_range_equals_the_same_slice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(1, 20))
    values = states(rows, 3, seed=rows)
    path = tmp_path_factory.mktemp("ranges") / "a.hsc"
    write_container(path, {"s": ("float32", values)}, {}, data.draw(st.integers(1, 8)))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    with ContainerReader(path) as reader:
        assert reader.read("s", start, stop).tobytes() == values[start:stop].tobytes()


@pytest.mark.parametrize(
    ("start", "stop", "needed"),
    [(0, 12, {0, 1, 2, 3}), (4, 5, {1}), (2, 4, {0, 1}), (9, 12, {3}), (6, 6, set()), (3, 6, {1})],
)
def test_a_row_range_reads_exactly_the_blocks_it_touches(
    path: Path, start: int, stop: int, needed: set[int]
) -> None:
    """Each block is damaged in turn: the read fails if and only if it needs that block."""
    write_container(path, {"s": ("float32", states(12))}, {}, rows_per_block=3)
    with ContainerReader(path) as reader:
        offsets = [block.offset for block in reader.streams["s"].blocks]
    read = set()
    for number, offset in enumerate(offsets):
        flip(path, offset)
        with ContainerReader(path) as reader:
            try:
                reader.read("s", start, stop)
            except FormatError:
                read.add(number)
        flip(path, offset)
    assert read == needed


def test_one_stream_is_read_without_the_others(path: Path) -> None:
    values = states(6)
    write_container(path, {"a": ("float32", values), "b": ("float32", values)}, {})
    with ContainerReader(path) as reader:
        offset = reader.streams["a"].blocks[0].offset
    flip(path, offset)
    with ContainerReader(path) as reader:
        assert reader.read("b").tobytes() == values.tobytes()
        with pytest.raises(FormatError) as caught:
            reader.check()
    assert str(caught.value) == (
        f"{path}: stream 'a' rows [0, 3) at byte {offset}: checksum does not match"
    )


def test_rows_that_were_not_captured_are_never_made_up(path: Path) -> None:
    values = states(10)
    write_container(path, {"s": ("float32", values)}, {}, missing=[(2, 4), (9, 10)])
    with ContainerReader(path) as reader:
        assert reader.streams["s"].shape == (10, 4)
        assert reader.covered("s") == [(0, 2), (4, 9)]
        assert reader.read("s", 4, 9).tobytes() == values[4:9].tobytes()
        for start, stop, gap in [(0, 10, "[2, 4)"), (3, 5, "[3, 4)"), (8, 10, "[9, 10)")]:
            with pytest.raises(NotCapturedError) as caught:
                reader.read("s", start, stop)
            assert str(caught.value) == (
                f"{path}: stream 's': rows {gap} were not captured; captured are [(0, 2), (4, 9)]"
            )


def test_a_stream_that_is_not_there_is_named(path: Path) -> None:
    write_container(path, {"s": ("float32", states(1))}, {})
    with ContainerReader(path) as reader, pytest.raises(NotCapturedError) as caught:
        reader.read("layer.7")
    assert str(caught.value) == f"{path}: no stream 'layer.7'; the file holds s"


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 6), (3, 2), (6, 6)])
def test_rows_beyond_the_stream_are_an_index_error(path: Path, start: int, stop: int) -> None:
    write_container(path, {"s": ("float32", states(5))}, {})
    with ContainerReader(path) as reader, pytest.raises(IndexError, match="not within 5 rows"):
        reader.read("s", start, stop)


def test_a_capture_without_rows_is_a_capture(path: Path) -> None:
    writer = ContainerWriter(path)
    writer.declare("s", "bfloat16", 7168)
    writer.finish({"rid": "empty"}, rows=0)
    with ContainerReader(path) as reader:
        assert reader.read("s").shape == (0, 7168)
        assert reader.covered("s") == []


def test_blocks_may_arrive_in_any_order_and_from_many_threads(path: Path) -> None:
    values = states(64, 8)
    writer = ContainerWriter(path)
    writer.declare("s", "float32", 8)
    threads = [
        threading.Thread(
            target=lambda row=row: writer.add("s", row, row + 1, encode(values[row], "float32"))
        )
        for row in np.random.default_rng(0).permutation(64).tolist()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.raw_bytes == values.nbytes
    writer.finish({}, 64)
    with ContainerReader(path) as reader:
        assert reader.read("s").tobytes() == values.tobytes()


@pytest.mark.parametrize("held", [0, 2000, 1 << 20], ids=["in-the-file", "both", "in-memory"])
def test_blocks_beyond_a_row_are_taken_back_without_a_hole(
    path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Each as a whole; what is left is the file that would be there had they never come."""
    monkeypatch.setattr(late_file, "HELD_BYTES", held)
    values, other = states(64, 8, seed=1), states(64, 8, seed=2)
    writer, plain = ContainerWriter(path), ContainerWriter(path.with_name("plain.hsc"))
    for one in (writer, plain):
        one.declare("s", "float32", 8)
        one.declare("t", "float32", 8)
    for start, stop in ((40, 50), (0, 10), (20, 30), (10, 20), (50, 64)):
        for name, rows in (("s", values), ("t", other)):
            writer.add(name, start, stop, encode(rows[start:stop], "float32"))
            if stop <= 25:
                plain.add(name, start, stop, encode(rows[start:stop], "float32"))
    assert writer.cut(64) == []
    assert writer.cut(25) == [(20, 30), (40, 50), (50, 64)]
    assert writer.raw_bytes == plain.raw_bytes == 2 * 20 * 32
    writer.add("s", 30, 31, encode(values[30:31], "float32"))
    plain.add("s", 30, 31, encode(values[30:31], "float32"))
    assert writer.finish({}, 40) == plain.finish({}, 40)
    assert path.read_bytes() == path.with_name("plain.hsc").read_bytes()
    with ContainerReader(path) as reader:
        reader.check()
        assert reader.covered("t") == [(0, 20)]
        assert reader.read("s", 0, 20).tobytes() == values[:20].tobytes()


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_the_mode_decides_who_may_read_whatever_the_umask(path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        writer = ContainerWriter(path, mode)
        writer.finish({}, 0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_an_existing_file_is_never_overwritten(path: Path) -> None:
    path.write_bytes(b"precious")
    writer = ContainerWriter(path)
    with pytest.raises(FileExistsError):
        writer.finish({}, 0)
    writer.abort()
    assert path.read_bytes() == b"precious"


def test_a_planted_symlink_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        ContainerWriter(path).finish({}, 0)
    assert not (tmp_path / "elsewhere").exists()


def test_abort_leaves_nothing_and_finish_leaves_the_file(path: Path) -> None:
    writer = ContainerWriter(path)
    writer.abort()
    assert not path.exists()
    writer.abort()
    writer = ContainerWriter(path)
    writer.finish({}, 0)
    writer.abort()
    assert path.exists()


def one_row(value: float = 0.0, width: int = 4) -> Encoded:
    return encode(np.full((1, width), value, "<f4"), "float32")


@pytest.mark.parametrize(
    ("start", "stop", "encoded", "message"),
    [
        (0, 2, one_row(), r"rows \[0, 2\): expected 8 float32 elements, got 4 float32"),
        (0, 1, encode(bytes(8), "float16"), "expected 4 float32 elements, got 4 float16"),
        (-1, 0, one_row(), r"rows \[-1, 0\)"),
        (1, 1, encode(b"", "float32"), r"rows \[1, 1\)"),
    ],
)
def test_a_block_that_is_not_these_rows_is_refused(
    path: Path, start: int, stop: int, encoded: Encoded, message: str
) -> None:
    writer = ContainerWriter(path)
    writer.declare("s", "float32", 4)
    with pytest.raises(ValueError, match=message):
        writer.add("s", start, stop, encoded)
    writer.abort()


def test_a_block_larger_than_readers_accept_is_refused(path: Path) -> None:
    """The planes are views of one small buffer: what counts is the claim, not the memory."""
    count = MAX_BLOCK_BYTES // 4 + 1
    writer = ContainerWriter(path)
    writer.declare("s", "float32")
    plane = b"\0"
    with pytest.raises(ValueError, match=f"{4 * count} bytes are more than the {MAX_BLOCK_BYTES}"):
        writer.add("s", 0, count, Encoded("float32", count, (plane,) * 4))
    writer.abort()


def test_rows_added_twice_or_beyond_the_end_are_refused(path: Path) -> None:
    writer = ContainerWriter(path)
    writer.declare("s", "float32", 4)
    writer.add("s", 2, 3, one_row())
    with pytest.raises(ValueError, match="row 2 is beyond 2"):
        writer.finish({}, 2)
    writer.add("s", 2, 3, one_row())
    with pytest.raises(ValueError, match="row 2 was added twice"):
        writer.finish({}, 3)
    writer.abort()
    assert not path.exists()


@pytest.mark.parametrize(
    ("stream", "dtype", "width", "message"),
    [
        ("s", "float32", 4, "declared already"),
        ("t", "float32", 0, "width is 0"),
        ("t", "f4", 4, "unknown dtype 'f4'"),
    ],
)
def test_a_stream_must_make_sense(
    path: Path, stream: str, dtype: str, width: int, message: str
) -> None:
    writer = ContainerWriter(path)
    writer.declare("s", "float32", 4)
    with pytest.raises(ValueError, match=message):
        writer.declare(stream, dtype, width)
    writer.abort()


FULL = """
import resource, signal, sys
import numpy as np
from hs_capture.format.codec import encode
from hs_capture.format.container import ContainerWriter

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
row, limit = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
writer = ContainerWriter(sys.argv[1])
writer.declare("s", "uint8", row)
block = encode(np.random.default_rng(0).integers(0, 256, row).astype("u1"), "uint8")
writer.add("s", 0, 1, block)
for attempt in (
    lambda: writer.add("s", 1, 2, block),
    lambda: writer.add("s", 2, 3, block),
    lambda: writer.finish({}, 3),
):
    try:
        attempt()
    except OSError as error:
        print(error.errno)
writer.abort()
"""


@pytest.mark.parametrize(
    ("row", "limit", "failures"),
    [
        pytest.param(400_000, 600_000, 3, id="while blocks are added"),
        pytest.param(600, 1000, 1, id="at the end of a short file"),
    ],
)
def test_a_write_that_stops_short_is_an_os_error_and_the_file_is_never_finished(
    path: Path, row: int, limit: int, failures: int
) -> None:
    """The kernel writes the part that fits first, as on a full file system, then fails."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(row), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(errno.EFBIG)] * failures
    assert not path.exists()


def test_a_short_capture_opens_no_file_before_its_end(path: Path) -> None:
    """And a longer one goes on where what was held ends."""
    blocks = [states(rows, seed=rows) for rows in (5, 20_000, 7)]
    writer = ContainerWriter(path)
    writer.declare("s", "float32", 4)
    row = 0
    there = []
    for block in blocks:
        writer.add("s", row, row + len(block), encode(block, "float32"))
        row += len(block)
        there.append(path.exists())
    assert there == [False, True, True]
    writer.finish({}, row)
    with ContainerReader(path) as reader:
        assert np.array_equal(reader.read("s"), np.concatenate(blocks))


def test_a_reader_leaves_no_descriptor_open(path: Path) -> None:
    write_container(path, {"s": ("float32", states(5))}, {})
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ContainerReader(path) as reader:
        reader.read("s")
    path.write_bytes(b"broken")
    with pytest.raises(FormatError):
        ContainerReader(path)
    with pytest.raises(ValueError, match="the reader is closed"):
        reader.read("s")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_missing_file_is_the_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ContainerReader(tmp_path / "no.hsc")


def test_metadata_is_kept_as_json_values(path: Path) -> None:
    metadata: dict[str, Any] = {"a": [1, 2.5, None, True], "b": {"c": "d"}}
    write_container(path, {}, metadata)
    with ContainerReader(path) as reader:
        assert reader.metadata == metadata
