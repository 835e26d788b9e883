"""`hs-capture export` says what it did, and its exit code says whether all of it was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from hs_capture.cli import main
from unit.export.stores import write_store
from unit.export.test_run import damage


def run(store: Path, output: Path, *more: str) -> int:
    return main(["export", "--store", str(store), "--output", str(output), "--workers", "1", *more])


def test_a_whole_export_is_told_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_store(tmp_path / "store")
    assert run(store, tmp_path / "out", "--format", "speculators") == 0
    said = capsys.readouterr()
    assert "4 of 4 samples" in said.err
    assert "speculators 0.9: 4 samples written (19 tokens," in said.out
    assert "layers: outputs of 1,3,4; as speculators 0.9 counts: 2,4,5" in said.out
    assert "final state: pre_norm, as captured" in said.out
    assert run(store, tmp_path / "out", "--format", "speculators") == 0
    assert "0 samples written (0 tokens, 0.0 MiB), 4 already there" in capsys.readouterr().out


def test_captures_that_cannot_be_read_end_it_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_store(tmp_path / "store")
    damage(store, 2)
    assert run(store, tmp_path / "out", "--format", "modelopt") == 1
    assert "failed: r2: " in capsys.readouterr().out


def test_a_refusal_is_one_line_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_store(tmp_path / "store", layers=(1, 3))
    assert run(store, tmp_path / "out", "--format", "specforge") == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("hs-capture export: SpecForge takes exactly 3 layers")
    assert not (tmp_path / "out").exists()
    assert run(tmp_path / "nothing", tmp_path / "out", "--format", "specforge") == 2
    assert "no captures at" in capsys.readouterr().err


def test_one_sample_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_store(tmp_path / "store", (1,))
    assert run(store, tmp_path / "out", "--format", "modelopt") == 0
    said = capsys.readouterr()
    assert said.out.startswith("ModelOpt: 1 sample written (1 token, ")
    assert "1 of 1 sample," in said.err


def test_an_output_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "file"
    output.touch()
    assert run(write_store(tmp_path / "store"), output, "--format", "modelopt") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"hs-capture export: --output {output} is a file: give a folder")


def test_wrong_usage_ends_with_4(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, tmp_path, "--format", "specforge", "--layers", "1,x")
    assert ended.value.code == 4
