"""Folders and files get the permission bits asked for, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hs_capture.format.permissions import create_folder, open_to_append


@pytest.fixture(autouse=True, params=[0, 0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_has_its_bits_and_keeps_what_its_parent_hands_down(tmp_path: Path) -> None:
    create_folder(tmp_path / "plain", 0o750)
    assert _mode(tmp_path / "plain") == 0o750
    tmp_path.chmod(0o2700)
    create_folder(tmp_path / "of-a-group", 0o750)
    assert _mode(tmp_path / "of-a-group") == 0o2750


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    with pytest.raises(FileExistsError):
        create_folder(tmp_path, 0o750)
    assert _mode(tmp_path) == 0o711


def test_a_new_file_has_its_bits_and_one_that_is_there_grows_as_it_is(tmp_path: Path) -> None:
    for mode, then in ((0o640, b"a"), (0o600, b"b")):
        descriptor = open_to_append(tmp_path / "index", mode)
        assert os.write(descriptor, then) == 1
        os.close(descriptor)
    assert _mode(tmp_path / "index") == 0o640
    assert (tmp_path / "index").read_bytes() == b"ab"
