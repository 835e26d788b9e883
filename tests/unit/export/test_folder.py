"""A folder that holds something else, or that another export fills, is refused and left alone."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from hs_capture import ConfigError
from hs_capture.export.ledger import Ledger
from unit.export.stores import write_store
from unit.export.test_run import export, tree


@pytest.mark.parametrize(
    ("name", "wish", "said"),
    [
        ("modelopt", {}, "format is 'specforge' there and 'modelopt' here"),
        ("specforge", {"layers": (1, 3, 5)}, r"layer_ids is \[1, 3, 4\] there and \[1, 3, 5\]"),
    ],
)
def test_another_export_in_the_folder_is_refused(
    tmp_path: Path, name: str, wish: dict[str, Any], said: str
) -> None:
    store, output = write_store(tmp_path / "store", layers=(1, 3, 4, 5)), tmp_path / "out"
    export(store, output, layers=(1, 3, 4))
    before = tree(output)
    with pytest.raises(ConfigError, match=f"holds another export: .*{said}"):
        export(store, output, name, **wish)
    assert tree(output) == before


def test_a_folder_with_other_files_is_refused_and_not_touched(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    output.mkdir()
    (output / "precious.pt").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"it holds files, but no export\.json"):
        export(store, output)
    assert tree(output) == {"precious.pt": b"x"}


def test_two_exports_do_not_write_to_one_folder(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output)
    before = tree(output)
    with (output / "exported.jsonl").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another export is writing there"):
            export(store, output)
    assert tree(output) == before


def test_of_two_exports_begun_at_once_the_later_leaves_nothing(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    output.mkdir()
    # The other one has the ledger, and has not come to its export.json yet.
    with (output / "exported.jsonl").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another export is writing there"):
            export(store, output)
    assert tree(output) == {"exported.jsonl": b""}
    # And should it have been stopped there, the folder is still as good as an empty one.
    assert export(store, output).written == 4


def test_an_export_that_another_one_overtook_sees_what_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the empty folder and its lock, another one came, wrote and ended."""
    store, output = write_store(tmp_path / "store"), tmp_path / "out"

    def overtaken(folder: Path) -> Ledger:
        with monkeypatch.context() as other:
            other.setattr("hs_capture.export.run.Ledger", Ledger)
            export(store, folder, "modelopt")
        return Ledger(folder)

    monkeypatch.setattr("hs_capture.export.run.Ledger", overtaken)
    with pytest.raises(ConfigError, match="format is 'modelopt' there and 'specforge' here"):
        export(store, output)
    export(store, tmp_path / "alone", "modelopt")
    assert tree(output) == tree(tmp_path / "alone")


def test_a_ledger_without_its_export_json_is_refused(tmp_path: Path) -> None:
    """Nobody knows then in which form the files are."""
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output)
    for path in output.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    (output / "export.json").unlink()
    assert [path.name for path in output.iterdir()] == ["exported.jsonl"]
    with pytest.raises(ConfigError, match=r"it holds files, but no export\.json"):
        export(store, output)
