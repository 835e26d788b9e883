"""The same rows come out of every kind of input, and a bad one is no more than a bad row."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from hs_capture import ConfigError
from hs_capture.extract.source import Source, open_source

ROWS: list[dict[str, Any]] = [
    {"id": f"s{i}", "input_ids": [i, i + 1], "loss_mask": [0, 1]} for i in range(150)
]


def saved_dataset(folder: Path, rows: list[dict[str, Any]]) -> None:
    """What `datasets.Dataset.save_to_disk` leaves: Arrow streams, and their names in state.json."""
    folder.mkdir()
    half = len(rows) // 2
    for number, part in enumerate([rows[:half], rows[half:]]):
        table = pa.Table.from_pylist(part)
        with (
            (folder / f"data-{number:05d}-of-00002.arrow").open("wb") as file,
            pa.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table)
    files = [{"filename": f"data-{number:05d}-of-00002.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    (folder / "dataset_info.json").write_text("{}")


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """The rows as each kind of input."""
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "parts").mkdir()
    for number in range(3):
        part = pa.Table.from_pylist(ROWS[50 * number : 50 * number + 50])
        pyarrow.parquet.write_table(part, tmp_path / "parts" / f"{number}.parquet")
    saved_dataset(tmp_path / "saved", ROWS)
    return {name: tmp_path / name for name in ("a.jsonl", "a.parquet", "parts", "saved")}


@pytest.mark.parametrize("kind", ["a.jsonl", "a.parquet", "parts", "saved"])
def test_all_rows_in_order(inputs: dict[str, Path], kind: str) -> None:
    source = open_source(inputs[kind])
    for _ in range(2):
        rows = list(source.rows())
        assert [row.number for row in rows] == list(range(150))
        assert [row.columns for row in rows] == ROWS
    assert len(source) == 150


@pytest.mark.parametrize("kind", ["a.jsonl", "a.parquet", "parts", "saved"])
def test_the_digest_is_of_the_bytes(inputs: dict[str, Path], kind: str, tmp_path: Path) -> None:
    digest = open_source(inputs[kind]).digest()
    copy = tmp_path / f"copy-{kind}"
    if inputs[kind].is_dir():
        shutil.copytree(inputs[kind], copy)
    else:
        shutil.copy(inputs[kind], copy)
    assert open_source(copy).digest() == digest
    changed = open_source(copy).files()[-1]
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert open_source(copy).digest() != digest


def test_broken_lines_are_rows_with_a_problem(tmp_path: Path) -> None:
    """Numbers count rows; places count lines, as editors do."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": \n  \n[1]\n\xff\n{"a": 2}')
    rows = list(open_source(path).rows())
    assert [(row.number, row.place) for row in rows] == [
        (0, "a.jsonl line 1"),
        (1, "a.jsonl line 3"),
        (2, "a.jsonl line 5"),
        (3, "a.jsonl line 6"),
        (4, "a.jsonl line 7"),
    ]
    assert [row.columns for row in rows] == [{"a": 1}, None, None, None, {"a": 2}]
    assert str(rows[1].problem).startswith("not valid JSON")
    assert rows[2].problem == "not a JSON object"


def test_what_is_no_input_is_refused(tmp_path: Path) -> None:
    for name, message in [
        ("none.jsonl", "there is no such input"),
        ("empty", "found neither state.json"),
        ("a.csv", r"expected a name that ends in \.jsonl or \.parquet"),
        ("dict", "holds several splits: give one of test, train"),
    ]:
        path = tmp_path / name
        if name == "a.csv":
            path.write_text("x")
        elif name in ("empty", "dict"):
            path.mkdir()
        if name == "dict":
            (path / "dataset_dict.json").write_text("{}")
            (path / "train").mkdir()
            (path / "test").mkdir()
        with pytest.raises(ConfigError, match=message):
            open_source(path)


def test_without_pyarrow_the_package_to_install_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    with pytest.raises(ConfigError) as refused:
        open_source(path)
    assert str(refused.value) == f"reading {path} needs pyarrow: pip install pyarrow"


def test_a_parquet_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    """Whether its end is missing or its middle is damaged, when rows are counted or read."""
    whole = tmp_path / "whole.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), whole)
    data = whole.read_bytes()
    path = tmp_path / "a.parquet"
    footer = int.from_bytes(data[-8:-4], "little")
    for broken in (
        b"",
        b"x" * 100,
        data[: len(data) // 2],
        data[: -footer - 8] + bytes(footer) + data[-8:],
    ):
        path.write_bytes(broken)
        with pytest.raises(ConfigError, match=f"^{path} cannot be read as Parquet: .+; write or"):
            len(open_source(path))
        with pytest.raises(ConfigError, match=f"^{path} cannot be read as Parquet: "):
            list(open_source(path).rows())
    path.write_bytes(data[:4] + bytes([255] * 400) + data[404:])
    assert len(open_source(path)) == 150
    with pytest.raises(ConfigError, match=f"^{path} cannot be read as Parquet: "):
        list(open_source(path).rows())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "field '_data_files' is missing"),
        ('{"_data_files": [1]}', "expected a JSON object, found 1"),
        ('{"_data_files": [{}]}', "field 'filename' is missing"),
    ],
)
def test_a_state_that_lists_no_files_is_refused(tmp_path: Path, state: str, message: str) -> None:
    saved_dataset(tmp_path / "saved", ROWS)
    path = tmp_path / "saved" / "state.json"
    path.write_text(state)
    for use in (Source.digest, len, lambda source: list(source.rows())):
        with pytest.raises(ConfigError, match=f"^{path}: .*save_to_disk") as refused:
            use(open_source(tmp_path / "saved"))
        assert message in str(refused.value)


def test_a_broken_arrow_file_is_refused_by_name(tmp_path: Path) -> None:
    saved_dataset(tmp_path / "saved", ROWS)
    path = tmp_path / "saved" / "data-00001-of-00002.arrow"
    whole = path.read_bytes()
    for broken in (b"", b"x" * 100, whole[: len(whole) // 2]):
        path.write_bytes(broken)
        with pytest.raises(ConfigError, match=f"^{path} cannot be read as Arrow: "):
            len(open_source(tmp_path / "saved"))
        with pytest.raises(ConfigError, match=f"^{path} cannot be read as Arrow: "):
            list(open_source(tmp_path / "saved").rows())


def test_a_file_that_is_gone_is_no_broken_one(tmp_path: Path) -> None:
    saved_dataset(tmp_path / "saved", ROWS)
    (tmp_path / "saved" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(FileNotFoundError, match=r"data-00001-of-00002\.arrow"):
        len(open_source(tmp_path / "saved"))
