"""Finished records become files with safe names, and lines of the index."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hs_capture.faults import FaultLog
from hs_capture.format.codec import encode
from hs_capture.format.container import ContainerReader, ContainerWriter
from hs_capture.format.index import read_index
from hs_capture.ring.message import Opened, StreamSpec
from hs_capture.writer.config import WriterConfig
from hs_capture.writer.publisher import Publisher, safe_name
from hs_capture.writer.record import Record

INDEX = "index-tp0.jsonl"
HOSTILE = [
    "../../x",
    "/etc/passwd",
    "..",
    ".",
    "",
    "x" * 300,
    "ünïcode 中文",
    "a\0b\n",
    "~",
    "CON:",
]


def config(run_dir: Path, mode: int = 0o600) -> WriterConfig:
    return WriterConfig(
        ring=-1,
        bell=-1,
        run_dir=str(run_dir),
        rank="tp0",
        file_mode=mode,
        reserve_bytes=0,
        workers=1,
        server_pid=1,
        streams=(StreamSpec("layer.1", "float32", 2),),
        splits_planes=False,
        metadata={
            "run_id": "run-a",
            "rank": "tp0",
            "layer_ids": [1],
            "final": [],
            "hidden_size": 2,
            "dtype": "float32",
            "hs_capture_version": "0.1.0",
            "sglang_version": "0.5.23",
            "model_class": "DeepseekV2ForCausalLM",
        },
    )


def record(run_dir: Path, rid: str, key: int = 0) -> Record:
    """A record of two tokens, all of it stored."""
    container = ContainerWriter(run_dir / f"tp0-{key}.part", mode=config(run_dir).file_mode)
    container.declare("layer.1", "float32", 2)
    container.add("layer.1", 0, 2, encode(np.ones((2, 2), "<f4"), "float32"))
    found = Record(Opened(key, rid, 2, 0), container)
    assert found.take(0, 2) == [(0, 2)]
    return found


@settings(max_examples=50)
@given(st.text(max_size=100))
@example("../../x")
@example("..")
@example("")
@example("x" * 300)
@example("中" * 300)
@example(".hidden")
def test_a_name_part_is_short_and_plain(rid: str) -> None:
    name = safe_name(rid)
    assert 1 <= len(name.encode()) <= 48
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert not name.startswith(".")
    assert "/" not in name


def test_an_ordinary_rid_is_its_own_name() -> None:
    assert safe_name("chat-0a1b2c.3_4") == "chat-0a1b2c.3_4"


def test_hostile_rids_stay_in_the_run_and_are_found_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "dump" / "run"
    run_dir.mkdir(parents=True)
    publisher = Publisher(config(run_dir))
    for rid in [*HOSTILE, *HOSTILE]:
        publisher.publish(record(run_dir, rid))
    publisher.close()
    lines = read_index(run_dir / INDEX)
    assert [line.rid for line in lines] == [*HOSTILE, *HOSTILE]
    assert [line.sequence for line in lines] == list(range(2 * len(HOSTILE)))
    assert {path.name for path in (tmp_path / "dump").iterdir()} == {"run"}
    assert {path.name for path in run_dir.iterdir()} == {"000000", INDEX}
    for line in lines:
        assert line.file is not None
        with ContainerReader(run_dir / line.file) as reader:
            assert reader.metadata["rid"] == line.rid
            assert reader.metadata["sequence"] == line.sequence
            assert reader.metadata["run_id"] == "run-a"


@pytest.mark.parametrize("umask", [0o022, 0o077])
@pytest.mark.parametrize(("mode", "folder_mode"), [(0o600, 0o700), (0o640, 0o750)])
def test_whoever_may_read_the_files_may_enter_their_folder(
    tmp_path: Path, mode: int, folder_mode: int, umask: int
) -> None:
    before = os.umask(umask)
    try:
        publisher = Publisher(config(tmp_path, mode))
        publisher.publish(record(tmp_path, "a"))
        publisher.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / INDEX).stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "000000").stat().st_mode) == folder_mode


def test_a_file_that_cannot_have_its_name_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "000000" / "000000000-a.hsc").mkdir(parents=True)
    publisher = Publisher(config(tmp_path))
    with pytest.raises(IsADirectoryError):
        publisher.publish(record(tmp_path, "a"))
    publisher.close()
    assert {path.name for path in tmp_path.iterdir()} == {"000000", INDEX}
    assert read_index(tmp_path / INDEX) == []


def test_a_line_is_owed_when_it_found_no_room_and_not_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is owed the writer takes nothing, and sleeps for a quarter of a second."""
    publisher = Publisher(config(tmp_path))
    write, full, owed = os.write, [False, True, False], []

    def written(descriptor: int, data: bytes) -> int:
        owed.append(publisher.owes)
        if full[len(owed) - 1]:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", written)
    publisher.give_up(0, "a", 2, "dropped")
    assert not publisher.owes
    publisher.give_up(1, "b", 2, "dropped")
    assert publisher.owes
    publisher.pay_owed()
    assert not publisher.owes
    assert owed == [False, False, True]
    publisher.close()
    assert [line.rid for line in read_index(tmp_path / INDEX)] == ["a", "b"]


def test_a_later_writer_goes_on_counting(tmp_path: Path) -> None:
    """Behind what the index names, and behind files that it does not name yet."""
    first = Publisher(config(tmp_path))
    first.publish(record(tmp_path, "a", key=7))
    first.give_up(8, "b", 9, "dropped")
    first.close()
    second = Publisher(config(tmp_path))
    assert second.counters == first.counters
    assert second.counters["lost"] == second.counters["captures"] == 1
    second.publish(record(tmp_path, "c", key=9))
    second.close()
    # The second writer dies between the file's last name and its line.
    lines = (tmp_path / INDEX).read_bytes().splitlines(keepends=True)
    (tmp_path / INDEX).write_bytes(b"".join(lines[:2]) + lines[2][:20])
    third = Publisher(config(tmp_path))
    assert third.told == {7, 8, 9}
    third.publish(record(tmp_path, "c"))
    third.close()
    names = sorted(path.name for path in (tmp_path / "000000").iterdir())
    assert names == ["000000000-a.hsc", "000000002-c.hsc", "000000003-c.hsc"]
    assert [line.sequence for line in read_index(tmp_path / INDEX)] == [0, 1, 2, 3]


def test_a_thousand_captures_share_a_folder(tmp_path: Path) -> None:
    publisher = Publisher(config(tmp_path))
    for _ in range(999):
        publisher.give_up(0, "lost", 1, "dropped")
    for rid in "ab":
        publisher.publish(record(tmp_path, rid))
    publisher.close()
    files = [line.file for line in read_index(tmp_path / INDEX) if line.file is not None]
    assert files == ["000000/000000999-a.hsc", "000001/000001000-b.hsc"]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    path = tmp_path / "tiny"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "hs-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_full_file_system_leaves_no_half_line_in_the_index(tiny: Path) -> None:
    """The index ends with a whole line; once there is room, the lines that waited come first."""
    faults = FaultLog(logging.getLogger("hs_capture.test_publisher"))
    publisher = Publisher(config(tiny), faults)
    filler = tiny / "filler"
    filler.write_bytes(bytes(40 * 1024))
    while os.statvfs(tiny).f_bavail:
        publisher.give_up(0, "r" * 1000, 1, "dropped")
    written = publisher.counters["lost"]
    for key in (1, 2):
        publisher.give_up(key, "q" * 5000, 1, "dropped")
        assert len(read_index(tiny / INDEX)) == written > 3
        assert (tiny / INDEX).read_bytes().endswith(b"\n")
    assert faults.count == 2
    assert "index could not be written: OSError: [Errno 28]" in str(faults.last)
    filler.unlink()
    publisher.give_up(3, "after", 1, "dropped")
    publisher.close()
    lines = read_index(tiny / INDEX)
    told = ["r" * 1000] * written + ["q" * 5000] * 2 + ["after"]
    assert [line.rid for line in lines] == told
    assert publisher.counters["lost"] == written + 3


def test_a_record_that_does_not_fit_is_not_published(tiny: Path) -> None:
    """The unfinished file can be removed, and what is readable stays as it was."""
    publisher = Publisher(config(tiny))
    publisher.publish(record(tiny, "a"))
    late = record(tiny, "b", key=1)
    with (tiny / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)) == 4096:
            if os.statvfs(tiny).f_bavail == 0:
                break
    late.request = Opened(1, "b" * 8000, 2, 0)
    with pytest.raises(OSError, match="No space left"):
        publisher.publish(late)
    late.container.abort()
    publisher.close()
    assert [line.rid for line in read_index(tiny / INDEX)] == ["a"]
    assert [path.name for path in tiny.rglob("*.hsc")] == ["000000000-a.hsc"]
    assert list(tiny.glob("*.part")) == []
