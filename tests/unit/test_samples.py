"""samples.jsonl keeps each sample's number, id, rid and loss mask, and is read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_capture import FormatError
from hs_capture.samples import Sample, append_line, read_samples, runs_of

FIRST = Sample(0, "conversation-7", "r-0", ((2, 4), (6, 9)))
SECOND = Sample(1, "", "r-1", ())


def write(folder: Path, data: bytes) -> Path:
    (folder / "samples.jsonl").write_bytes(data)
    return folder


def test_samples_come_back_by_rid_in_the_order_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, append_line(SECOND) + append_line(FIRST))
    read = read_samples(tmp_path)
    assert read == {"r-1": SECOND, "r-0": FIRST}
    assert list(read) == ["r-1", "r-0"]


def test_a_line_is_the_json_that_is_promised() -> None:
    line = append_line(FIRST)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "id": "conversation-7",
        "sample": 0,
        "rid": "r-0",
        "loss_mask": [[2, 4], [6, 9]],
        "next_token": None,
    }


def test_the_token_that_the_model_chose_comes_back_and_may_be_unknown(tmp_path: Path) -> None:
    told = Sample(2, "c", "r-2", (), 811)
    early = b'{"id": "conversation-7", "sample": 0, "rid": "r-0", "loss_mask": [[2, 4], [6, 9]]}\n'
    assert read_samples(write(tmp_path, append_line(told) + early)) == {"r-2": told, "r-0": FIRST}


def test_a_store_without_the_file_is_told_from_an_empty_one(tmp_path: Path) -> None:
    assert read_samples(tmp_path) is None
    assert read_samples(write(tmp_path, b"")) == {}


def test_an_unfinished_last_line_is_passed_over(tmp_path: Path) -> None:
    """Wherever a writer that is still at it has got to, short of the whole line."""
    whole = append_line(SECOND).rstrip()
    for end in range(len(whole)):
        write(tmp_path, append_line(FIRST) + whole[:end])
        assert read_samples(tmp_path) == {"r-0": FIRST}


def test_a_last_line_counts_without_its_line_end(tmp_path: Path) -> None:
    """Editors and scripts leave it out."""
    write(tmp_path, append_line(FIRST) + append_line(SECOND).rstrip())
    assert read_samples(tmp_path) == {"r-0": FIRST, "r-1": SECOND}
    assert read_samples(write(tmp_path, append_line(SECOND).rstrip())) == {"r-1": SECOND}


def test_a_last_line_without_its_line_end_is_read_with_suspicion(tmp_path: Path) -> None:
    write(tmp_path, append_line(FIRST) + b'{"id": "x", "sample": 1, "rid": "y"}')
    with pytest.raises(FormatError, match=r"line 2: field 'loss_mask' is missing"):
        read_samples(tmp_path)


def test_of_two_lines_with_one_rid_the_later_holds(tmp_path: Path) -> None:
    later = Sample(5, "again", "r-0", ((0, 1),))
    assert read_samples(write(tmp_path, append_line(FIRST) + append_line(later))) == {"r-0": later}


@pytest.mark.parametrize(
    ("sample", "mask"),
    [(-1, []), (0, [[2, 2]]), (0, [[3, 2]]), (0, [[-1, 2]]), (0, [[4, 6], [5, 7]])],
)
def test_numbers_and_masks_that_make_no_sense_name_their_line(
    tmp_path: Path, sample: int, mask: list[list[int]]
) -> None:
    bad = json.dumps({"id": "x", "sample": sample, "rid": "y", "loss_mask": mask}).encode()
    write(tmp_path, append_line(FIRST) + bad + b"\n")
    with pytest.raises(FormatError, match=r"samples\.jsonl: line 2: sample"):
        read_samples(tmp_path)


def test_a_line_that_is_no_json_names_its_number(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"samples\.jsonl: line 1: not valid JSON"):
        read_samples(write(tmp_path, b"{]\n"))


@given(st.lists(st.integers(0, 1), max_size=40))
def test_a_mask_and_its_runs_say_the_same(mask: list[int]) -> None:
    sample = Sample(0, "", "", runs_of(mask))
    dense = sample.mask(len(mask))
    assert dense.tolist() == mask
    assert dense.dtype == np.int64


def test_a_mask_that_is_longer_than_the_prompt_is_refused() -> None:
    with pytest.raises(FormatError, match=r"sample 0 .*selects token 8 of 8"):
        FIRST.mask(8)
