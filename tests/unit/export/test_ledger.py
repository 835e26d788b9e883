"""The ledger of an export holds whole lines only, whatever the file system does."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hs_capture.export.ledger import Exported, Ledger

LINE = Exported(0, "data_0.pt", "run-a/0.hsc", "id-0", "r0", 5, 100, "00ff")
OTHER = replace(LINE, number=1, file="data_1.pt", source="run-a/1.hsc")


def full_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A file system that takes `room` more bytes of the next write."""
    write = os.write

    def short(file: int, data: bytes) -> int:
        return write(file, data[:room])

    monkeypatch.setattr(os, "write", short)


def test_a_line_that_found_no_room_leaves_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another line follows as soon as there is room again, and would be joined to a torn one."""
    with Ledger(tmp_path) as ledger:
        ledger.append(LINE)
        with monkeypatch.context() as full:
            full_after(full, 40)
            with pytest.raises(OSError, match="No space left") as raised:
                ledger.append(OTHER)
        assert raised.value.errno == errno.ENOSPC
        assert raised.value.filename == str(ledger.path)
        ledger.append(OTHER)
    assert ledger.path.read_bytes() == LINE.to_json() + b"\n" + OTHER.to_json() + b"\n"
    with Ledger(tmp_path) as again:
        assert again.by_source() == {LINE.source: LINE, OTHER.source: OTHER}


def test_a_line_that_takes_back_another_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(LINE)
    with Ledger(tmp_path) as ledger, monkeypatch.context() as full:
        full_after(full, 40)
        with pytest.raises(OSError, match="No space left"):
            ledger.forget(LINE.file)
    with Ledger(tmp_path) as again:
        assert again.by_source() == {LINE.source: LINE}
        assert again.forget(LINE.file)
        assert not again.forget(LINE.file)
    with Ledger(tmp_path) as last:
        assert last.by_source() == {}
