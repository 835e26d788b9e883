"""Appending all of something, or nothing of it."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from hs_capture.format.append import append_whole
from hs_capture.format.permissions import open_to_append


def test_what_is_appended_is_behind_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    descriptor = open_to_append(path, 0o600)
    append_whole(descriptor, b"two\n", path)
    append_whole(descriptor, b"three\n", path, durable=True)
    os.close(descriptor)
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_line_that_finds_room_for_its_beginning_alone_is_taken_back(tmp_path: Path) -> None:
    """The limit on a file's size stands for a full file system: the kernel writes what fits."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    descriptor = open_to_append(path, 0o600)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))
    try:
        with pytest.raises(OSError, match="lines") as raised:
            append_whole(descriptor, b"two\n", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"one\n"
    append_whole(descriptor, b"two\n", path)
    os.close(descriptor)
    assert path.read_bytes() == b"one\ntwo\n"
