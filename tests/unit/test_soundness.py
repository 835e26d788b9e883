"""A capture is sound or it is named with what is wrong: nothing wrong passes for right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capture_files import METADATA, RUN, states, write_container
from hs_capture.format.catalog import describe
from hs_capture.format.container import ContainerReader
from hs_capture.soundness import Examined, examine, newest_files

TOKENS = 7
Streams = dict[str, tuple[str, NDArray[Any]]]


def good(dtype: str = "float32") -> Streams:
    """Streams of a sound capture of seven tokens."""
    return {
        "input_ids": ("int64", np.arange(TOKENS, dtype="<i8")),
        "layer.-1": (dtype, states(TOKENS, dtype=dtype, seed=1)),
        "layer.3": (dtype, states(TOKENS, dtype=dtype, seed=2)),
        "final.pre_norm": (dtype, states(TOKENS, dtype=dtype, seed=3)),
    }


def written(
    path: Path,
    streams: Streams,
    without: tuple[tuple[int, int], ...] = (),
    **claims: Any,
) -> Examined:
    """Write a capture that makes `claims` about itself, `without` some rows, and examine it."""
    metadata = replace(
        METADATA,
        **{
            "num_tokens": TOKENS,
            "layer_ids": (-1, 3),
            "final": ("pre_norm",),
            "dtype": streams["layer.-1"][0],
            "missing": without,
            "complete": not without,
            "incomplete_reason": "prefix_cache" if without else None,
            **claims,
        },
    )
    write_container(path, streams, metadata.to_object(), missing=without)
    found = examine(path)
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the capture goes."""
    return tmp_path / "000000001-x.hsc"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_good_capture_is_sound(path: Path, dtype: str) -> None:
    found = written(path, good(dtype))
    assert found == Examined(path, path.stat().st_size, None, None)


def test_an_incomplete_capture_that_says_so_is_sound(path: Path) -> None:
    found = written(path, good(), without=((0, 2), (5, 6)))
    assert (found.problem, found.incomplete_reason) == (None, "prefix_cache")


def test_a_capture_of_which_no_row_came_is_sound_when_it_says_so(path: Path) -> None:
    assert written(path, good(), without=((0, TOKENS),)).problem is None


@pytest.mark.parametrize("behind", [-1, 2])
def test_more_rows_than_one_behind_those_of_the_capture_are_found(path: Path, behind: int) -> None:
    found = written(path, good(), num_tokens=TOKENS - behind, rows_behind=behind)
    assert found.problem == f"{path}: rows_behind is {behind}, not 0 or 1"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_found(path: Path, value: float) -> None:
    streams = good()
    streams["layer.3"][1][[1, 6], 2] = value
    assert written(path, streams).problem == f"{path}: stream 'layer.3': 2 values are not finite"


def test_a_bfloat16_nan_is_found(path: Path) -> None:
    streams = good("bfloat16")
    streams["final.pre_norm"][1][4, 0] = 0x7FC0
    expected = f"{path}: stream 'final.pre_norm': 1 values are not finite"
    assert written(path, streams).problem == expected


def test_a_layer_of_nothing_but_zeros_is_found(path: Path) -> None:
    streams = good()
    streams["layer.3"][1][:] = -0.0
    assert written(path, streams).problem == f"{path}: stream 'layer.3': all values are zero"


def test_one_row_of_zeros_is_no_fault(path: Path) -> None:
    streams = good()
    streams["layer.3"][1][2] = 0.0
    assert written(path, streams).problem is None


def test_token_ids_may_all_be_zero(path: Path) -> None:
    streams = good()
    streams["input_ids"][1][:] = 0
    assert written(path, streams).problem is None


def test_two_layers_with_the_same_values_are_found(path: Path) -> None:
    streams = good()
    streams["layer.3"][1][:] = streams["layer.-1"][1]
    expected = f"{path}: streams 'layer.-1' and 'layer.3' hold the same values"
    assert written(path, streams).problem == expected


def test_layers_that_differ_in_one_bit_are_different(path: Path) -> None:
    streams = good()
    streams["layer.3"][1][:] = streams["layer.-1"][1]
    streams["layer.3"][1].view("<u4")[3, 3] ^= 1
    assert written(path, streams).problem is None


@pytest.mark.parametrize("name", ["input_ids", "layer.3", "final.pre_norm"])
def test_a_missing_stream_is_found(path: Path, name: str) -> None:
    kept = {key: value for key, value in good().items() if key != name}
    found = written(path, kept)
    assert found.problem == f"{path}: stream {name!r} is missing"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"num_tokens": 8}, "stream 'input_ids' has 7 rows, the capture has 8 tokens"),
        ({"hidden_size": 5}, "stream 'layer.-1' has shape [7, 4], the hidden size is 5"),
        ({"dtype": "float16"}, "stream 'layer.-1' is float32, the capture says float16"),
        (
            {"missing": ((1, 2),), "complete": False},
            "stream 'layer.-1' lacks rows [], the capture says [(1, 2)]",
        ),
    ],
)
def test_a_claim_that_the_rows_do_not_bear_out_is_found(
    path: Path, claims: dict[str, Any], expected: str
) -> None:
    assert written(path, good(), **claims).problem == f"{path}: {expected}"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rid": "other"}, "rid is 'r', but the index says 'other'"),
        ({"sequence": 4}, "sequence is 0, but the index says 4"),
        ({"num_tokens": 8}, "num_tokens is 7, but the index says 8"),
        ({"prompt_tokens": 5}, "prompt_tokens is None, but the index says 5"),
        ({"missing": ()}, "missing is [(0, 2), (5, 6)], but the index says []"),
        ({"weights_version": 1}, "weights_version is 0, but the index says 1"),
        ({"lora": "tuned"}, "lora is None, but the index says 'tuned'"),
        ({"links": ((0, 2, 9),)}, "links is (), but the index says ((0, 2, 9),)"),
        ({"rows_behind": 1}, "rows_behind is 0, but the index says 1"),
    ],
)
def test_a_line_of_the_index_about_another_capture_is_found(
    path: Path, change: dict[str, Any], told: str
) -> None:
    sound = written(path, good(), without=((0, 2), (5, 6)))
    entry = describe(path.parent, path.name)
    assert examine(path, entry) == sound
    found = examine(path, replace(entry, **change))
    assert found is not None
    assert found.problem == f"{path}: {told}"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"run_id": "run-b"}, "run_id is 'run-a', but run.json says 'run-b'"),
        ({"layer_ids": (-1, 4)}, "layer_ids is (-1, 3), but run.json says (-1, 4)"),
        ({"final": ()}, "final is ('pre_norm',), but run.json says ()"),
        ({"hidden_size": 8}, "hidden_size is 4, but run.json says 8"),
        ({"dtype": "bfloat16"}, "dtype is 'float32', but run.json says 'bfloat16'"),
    ],
)
def test_a_capture_of_another_run_is_found(path: Path, change: dict[str, Any], told: str) -> None:
    sound = written(path, good())
    run = replace(RUN, layer_ids=(-1, 3))
    assert examine(path, run=run) == sound
    found = examine(path, run=replace(run, **change))
    assert found is not None
    assert found.problem == f"{path}: {told}"


def test_rows_that_lack_in_a_capture_that_calls_itself_complete_are_found(path: Path) -> None:
    found = written(path, good(), without=((2, 4),), complete=True)
    expected = "stream 'layer.-1' lacks rows [(2, 4)], and the capture says it is complete"
    assert found.problem == f"{path}: {expected}"


def test_a_flipped_bit_in_any_block_is_named_with_file_stream_rows_and_byte(path: Path) -> None:
    written(path, good())
    whole = path.read_bytes()
    with ContainerReader(path) as reader:
        blocks = [(stream, block) for stream in reader.streams.values() for block in stream.blocks]
    assert len(blocks) == 12
    for stream, block in blocks:
        broken = bytearray(whole)
        broken[block.end - 1] ^= 0x10
        path.write_bytes(broken)
        found = examine(path)
        assert found is not None
        assert found.problem == (
            f"{path}: stream {stream.name!r} rows [{block.start}, {block.stop}) "
            f"at byte {block.offset}: checksum does not match"
        )


def test_a_file_cut_short_is_named(path: Path) -> None:
    written(path, good())
    path.write_bytes(path.read_bytes()[:-1])
    found = examine(path)
    assert found is not None
    assert str(found.problem).startswith(f"{path}: end marker missing")


def test_metadata_that_lacks_a_field_is_named(path: Path) -> None:
    write_container(path, good(), {"rid": "r"})
    found = examine(path)
    assert found is not None
    assert found.problem == f"{path}: metadata: field 'sequence' is missing"


def test_a_capture_taken_away_meanwhile_is_no_damage(path: Path) -> None:
    assert examine(path) is None


def test_a_capture_that_cannot_be_read_is_named(path: Path) -> None:
    path.mkdir()
    found = examine(path)
    assert found is not None
    assert found.problem == f"{path}: cannot be read: Is a directory"


def test_the_newest_files_come_first_and_no_others(tmp_path: Path) -> None:
    for sequence in (0, 1, 999, 1000, 1001, 12000):
        folder = tmp_path / f"{sequence // 1000:06d}"
        folder.mkdir(exist_ok=True)
        (folder / f"{sequence:09d}-x.hsc").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "000099999-x.hsc").touch()
    (tmp_path / "000000" / "note.txt").touch()

    def numbers(limit: int | None) -> list[int]:
        return [int(Path(path).name[:9]) for path in newest_files(tmp_path, limit)]

    assert numbers(4) == [12000, 1001, 1000, 999]
    assert numbers(None) == [12000, 1001, 1000, 999, 1, 0]
