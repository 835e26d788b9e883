"""run.json, the status and the refusal: whole or not there, checked, and open to new fields."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture_files import RUN, norm_weight
from hs_capture.errors import FormatError
from hs_capture.format.atomic import write_atomically
from hs_capture.format.run import NormWeight, Refusal, RunInfo, Status

WITH_NORM = replace(RUN, norm=norm_weight([1, 2, 3, 4]), notes=("a note",))
STATUS = Status("run-a", "tp0", "serving", 1, 2, 10.0, 12.5, None, {"captures": 3}, None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


WITH_NORMS = replace(WITH_NORM, norms={"1": norm_weight([4, 3, 2, 1]), "3": norm_weight([1] * 4)})


@pytest.mark.parametrize("run", [RUN, WITH_NORM, WITH_NORMS])
def test_a_run_comes_back_equal(path: Path, run: RunInfo) -> None:
    run.write(path)
    assert RunInfo.read(path) == run


def test_status_and_refusal_come_back_equal(path: Path) -> None:
    STATUS.write(path)
    assert Status.read(path) == STATUS
    refusal = Refusal(1.5, 7, "0.5.23", "SGLANG_HS_LAYERS: ...")
    refusal.write(path)
    assert Refusal.read(path) == refusal


@pytest.mark.parametrize(
    ("values", "dtype"), [([1, 2.5], "float32"), ([0x3F80, 0xBF81], "bfloat16")]
)
def test_the_norm_weight_keeps_its_bits(values: list[float], dtype: str) -> None:
    weight = np.array(values, {"float32": "<f4", "bfloat16": "<u2"}[dtype])
    norm = NormWeight.of(weight, dtype, 1e-6)
    assert norm.weight().tobytes() == weight.tobytes()
    assert (norm.dtype, norm.eps) == (dtype, 1e-6)


def test_a_norm_weight_of_another_type_is_refused() -> None:
    with pytest.raises(
        ValueError, match="one dimension of uint16 for bfloat16, found 1 of float32"
    ):
        NormWeight.of(np.ones(2, "<f4"), "bfloat16", 1e-6)


def test_a_newer_format_is_refused_before_its_fields_are_looked_at(path: Path) -> None:
    path.write_text('{"format_version": 2}')
    with pytest.raises(FormatError) as caught:
        RunInfo.read(path)
    assert str(caught.value) == (
        f"{path}: format version 2, but this release of hs-capture reads version 1; "
        "read it with a newer release"
    )


def test_fields_of_a_later_release_are_passed_over(path: Path) -> None:
    RUN.write(path)
    change(path, added_later={"x": 1})
    assert RunInfo.read(path) == RUN


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run_id": 3}, "field 'run_id': expected str, found 3"),
        ({"created": "now"}, "field 'created': expected float, found 'now'"),
        ({"num_layers": True}, "field 'num_layers': expected int, found True"),
        ({"num_layers": 1.0}, "field 'num_layers': expected int, found 1.0"),
        ({"layer_ids": 3}, "field 'layer_ids': expected an array, found 3"),
        ({"layer_ids": [1, "2"]}, "field 'layer_ids': expected int, found '2'"),
        ({"ranks": []}, "field 'ranks': expected an object, found an array"),
        ({"ranks": {"tp": None}}, "field 'ranks'['tp']: expected int, found null"),
        ({"norm": []}, "field 'norm': expected a JSON object, found an array"),
        ({"norm": {"dtype": "float32", "eps": 1}}, "'norm': field 'weight_base64' is missing"),
        ({"hidden_size": 5}, "norm weight has 4 values, the hidden size is 5"),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    path: Path, fields: dict[str, Any], message: str
) -> None:
    WITH_NORM.write(path)
    change(path, **fields)
    with pytest.raises(FormatError) as caught:
        RunInfo.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        ({"weight_base64": "?"}, "not valid base64"),
        ({"weight_base64": "AAAA"}, "3 bytes are no whole float32 values"),
        ({"dtype": "f4"}, "unknown dtype 'f4'"),
        ({"eps": -1}, "norm eps is -1.0, expected 0 or more"),
        ({"eps": None}, "field 'eps': expected float, found null"),
    ],
)
def test_a_damaged_norm_is_named(path: Path, norm: dict[str, Any], message: str) -> None:
    WITH_NORM.write(path)
    change(path, norm=WITH_NORM.to_object()["norm"] | norm)
    with pytest.raises(FormatError) as caught:
        RunInfo.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_each_version_of_the_weights_has_its_own_norm_or_none(path: Path) -> None:
    """A run of an earlier release has one norm, that of version 0."""
    WITH_NORMS.write(path)
    run = RunInfo.read(path)
    assert run.norm_of(0) == norm_weight([1, 2, 3, 4])
    assert run.norm_of(1) == norm_weight([4, 3, 2, 1])
    assert run.norm_of(2) is None
    fields = json.loads(path.read_text())
    del fields["norms"]
    path.write_text(json.dumps(fields))
    run = RunInfo.read(path)
    assert run.norm_of(0) == norm_weight([1, 2, 3, 4])
    assert run.norm_of(1) is None


def test_a_damaged_norm_of_a_later_version_is_named(path: Path) -> None:
    WITH_NORMS.write(path)
    change(path, norms={"1": norm_weight([1, 2, 3]).to_object()})
    with pytest.raises(FormatError, match="norm weight has 3 values, the hidden size is 4"):
        RunInfo.read(path)


def test_a_run_file_cut_anywhere_is_a_format_error(path: Path) -> None:
    WITH_NORM.write(path)
    data = path.read_bytes().rstrip()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError):
            RunInfo.read(path)


def test_whole_numbers_do_for_times(path: Path) -> None:
    RUN.write(path)
    change(path, created=1000)
    created = RunInfo.read(path).created
    assert (type(created), created) == (float, 1000.0)


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_the_mode_is_exact_and_no_temporary_is_left(path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        RUN.write(path, mode)
        RUN.write(path, mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The target is a directory that cannot be replaced by a file."""
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(target, b"x")
    assert list(tmp_path.iterdir()) == [target]


def test_a_reader_never_sees_half_a_status(path: Path) -> None:
    long = replace(STATUS, last_error="x" * 100_000)
    STATUS.write(path)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            long.write(path)
            STATUS.write(path)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        seen = [Status.read(path) for _ in range(300)]
    finally:
        stop.set()
        writer.join()
    assert all(status in (STATUS, long) for status in seen)
