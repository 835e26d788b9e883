"""Damage to a capture file is always found, named, and never costs memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_files import states, write_container
from hs_capture.errors import FormatError
from hs_capture.format.container import ContainerReader

Footer = dict[str, Any]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "small.hsc"
    streams = {
        "input_ids": ("int64", np.arange(5, dtype="<i8")),
        "layer.1": ("bfloat16", states(5, 32, "bfloat16")),
        "final.pre_norm": ("float32", states(5, 3)),
    }
    write_container(path, streams, {"rid": "small"})
    return path


def read_all(path: Path) -> None:
    with ContainerReader(path) as reader:
        reader.check()


def expect_format_error(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_all(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message


def test_the_untouched_file_is_sound(small: Path) -> None:
    read_all(small)


def test_truncation_at_every_length_is_found(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    for length in range(len(data)):
        expect_format_error(tmp_path / "cut.hsc", data[:length])


def test_any_flipped_byte_is_found(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    for offset in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[offset] ^= mask
            expect_format_error(tmp_path / "flip.hsc", bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_stretch_overwritten_removed_or_put_in_is_found(
    small: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = small.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=40)) + whole[stop:]
    path = tmp_path_factory.mktemp("stretch") / "a.hsc"
    if damaged == whole:
        return
    expect_format_error(path, damaged)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=120))
def test_arbitrary_bytes_are_no_capture(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    expect_format_error(tmp_path_factory.mktemp("any") / "a.hsc", data)


def test_another_version_is_named(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    message = expect_format_error(tmp_path / "new.hsc", data[:7] + b"\x02" + data[8:])
    assert message.endswith(
        "format version 2, but this release of hs-capture reads version 1; "
        "read it with a newer release"
    )


def test_an_unfinished_file_is_called_so(small: Path, tmp_path: Path) -> None:
    message = expect_format_error(tmp_path / "part.hsc", small.read_bytes()[:100])
    assert "end marker missing in the last 32 of 100 bytes" in message


def rewrite(data: bytes, change: Callable[[Footer], object]) -> bytes:
    """The file with a changed footer under a checksum that fits it: a hostile or buggy writer."""
    offset, length, _, end = struct.unpack("<QQQ8s", data[-32:])
    footer = orjson.loads(data[offset : offset + length])
    changed = change(footer)
    encoded = orjson.dumps(changed if changed == [1] else footer)
    checksum = xxhash.xxh3_64_intdigest(encoded)
    return data[:offset] + encoded + struct.pack("<QQQ8s", offset, len(encoded), checksum, end)


def block(footer: Footer, stream: int = 1, number: int = 0) -> list[Any]:
    entry: list[Any] = footer["streams"][stream]["blocks"][number]
    return entry


def setting(index: int, value: object) -> Callable[[Footer], None]:
    def change(footer: Footer) -> None:
        block(footer)[index] = value

    return change


def lies() -> Iterator[tuple[str, Callable[[Footer], object], str]]:
    yield "no object", lambda _: [1], "not a JSON object"
    yield "no metadata", lambda f: f.pop("metadata"), "needs an object 'metadata'"
    yield "no streams", lambda f: f.update(streams={}), "an array 'streams'"
    yield "a number for a stream", lambda f: f["streams"].append(1), "stream 3: needs name"
    yield "twice the name", lambda f: f["streams"][0].update(name="layer.1"), "is there twice"
    yield "unknown dtype", lambda f: f["streams"][1].update(dtype="f"), "unknown dtype 'f'"
    yield "other dtype", lambda f: f["streams"][1].update(dtype="int8"), "cannot have planes"
    yield "three dimensions", lambda f: f["streams"][1].update(shape=[5, 4, 8]), "is neither"
    yield "negative rows", lambda f: f["streams"][1].update(shape=[-5, 32]), "is neither"
    yield "true for rows", lambda f: f["streams"][1].update(shape=[True, 32]), "is neither"
    yield "fewer rows", lambda f: f["streams"][1].update(shape=[2, 32]), "not within the 2 rows"
    yield "another width", lambda f: f["streams"][1].update(shape=[5, 31]), "cannot have planes"
    yield "short block", lambda f: block(f).pop(), "not [start, stop, offset"
    yield "start is text", setting(0, "0"), "not [start, stop, offset"
    yield "no rows", setting(1, 0), "not within the 5 rows"
    yield "rows before 0", setting(0, -1), "not within the 5 rows"
    yield "a hole", setting(2, 9), "block at byte 9, expected at byte"
    yield "far away", setting(2, 1 << 60), "expected at byte"
    yield "plane too long", setting(3, [96, 97]), "cannot have planes"
    yield "noise plane short", setting(3, [95, 90]), "cannot have planes"
    yield "negative plane", setting(3, [96, -1]), "cannot have planes"
    yield "one plane", setting(3, [96]), "cannot have planes"
    yield "short checksum", setting(4, "00"), "not 16 hexadecimal digits"
    yield "wrong checksum", setting(4, "0" * 16), "checksum does not match"
    yield "lost block", lambda f: f["streams"][2]["blocks"].clear(), "blocks end at byte"
    yield (
        "blocks out of order",
        lambda f: f["streams"][1]["blocks"].reverse(),
        "rows [0, 3) follow rows [3, 5)",
    )
    yield (
        "one block in two streams",
        lambda f: (
            f["streams"][0]["blocks"].append(block(f, 1)) or f["streams"][0].update(shape=[8])
        ),
        "cannot have planes",
    )


@pytest.mark.parametrize(
    ("change", "message"), [lie[1:] for lie in lies()], ids=[x[0] for x in lies()]
)
def test_a_footer_that_lies_is_caught(
    small: Path, tmp_path: Path, change: Callable[[Footer], object], message: str
) -> None:
    found = expect_format_error(tmp_path / "lie.hsc", rewrite(small.read_bytes(), change))
    assert message in found


@pytest.mark.parametrize("rows", [1 << 40, 1 << 62])
def test_a_claim_of_endless_rows_costs_no_memory(small: Path, tmp_path: Path, rows: int) -> None:
    """Both as a block that cannot be, and as rows that nobody stored."""

    def grow(footer: Footer) -> None:
        footer["streams"][1]["shape"][0] = rows

    def grow_block(footer: Footer) -> None:
        grow(footer)
        block(footer, 1, 1)[1] = rows

    path = tmp_path / "bomb.hsc"
    tracemalloc.start()
    assert "a block holds at most" in expect_format_error(
        path, rewrite(small.read_bytes(), grow_block)
    )
    path.write_bytes(rewrite(small.read_bytes(), grow))
    with ContainerReader(path) as reader, pytest.raises(KeyError, match="were not captured"):
        reader.read("layer.1")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_file_that_shrinks_while_it_is_open_is_found(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "shrinks.hsc"
    path.write_bytes(small.read_bytes())
    with ContainerReader(path) as reader:
        path.write_bytes(b"")
        with pytest.raises(FormatError, match=r"byte 8: file ends \d+ bytes short"):
            reader.check()
