"""A file whose beginning waits in memory: whatever the order, the bytes are those of the file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_capture.format import late_file
from hs_capture.format.late_file import LateFile


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(0, 200), st.randoms())
def test_parts_in_any_order_make_the_same_file(
    parts: list[bytes], held: int, chance: object
) -> None:
    offsets = [sum(map(len, parts[:number])) for number in range(len(parts))]
    order = list(range(len(parts)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_file, "HELD_BYTES", held)
        path = Path(folder, "file")
        file = LateFile(str(path), 0o600)
        longest = 0
        for number in order:
            file.write((parts[number][:3], parts[number][3:]), offsets[number])
            longest = max(longest, offsets[number] + len(parts[number]))
            assert path.exists() is (longest > held)
        file.close()
        assert path.read_bytes() == b"".join(parts)


def test_its_folder_may_be_gone_when_it_is_created(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    file = LateFile(str(folder / "file"), 0o600)
    file.write((b"abc",), 0)
    shutil.rmtree(folder)
    file.close()
    assert (folder / "file").read_bytes() == b"abc"


def test_a_run_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    """Its dump directory might by now be a folder of another file system."""
    folder = tmp_path / "run" / "open"
    folder.mkdir(parents=True)
    file = LateFile(str(folder / "file"), 0o600)
    file.write((b"abc",), 0)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        file.close()
    assert list(tmp_path.iterdir()) == []


def test_after_an_error_every_call_raises_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"there")
    file = LateFile(str(path), 0o600)
    with pytest.raises(FileExistsError) as first:
        file.close()
    with pytest.raises(FileExistsError) as second:
        file.write((b"abc",), 0)
    assert first.value is second.value
    file.remove()
    assert path.read_bytes() == b"there"
