"""Loss masks are found or asked for: a folder beside its samples.jsonl is no training set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capture_files import RUN, write_capture, write_run
from hs_capture import ConfigError, HiddenStatesDataset, open_store
from hs_capture.extract.plan import EXTRACT_FILE
from hs_capture.samples import Sample, append_line
from hs_capture.samples_elsewhere import EXTRACT_FILE as OUR_NAME_FOR_IT
from hs_capture.selection import select
from unit.export.stores import streams, write_samples, write_store

MASK = ((2, 4),)


def masks(path: Path, rids: str | None = None) -> dict[str, list[int]]:
    """The loss masks of a store, by rid."""
    dataset = HiddenStatesDataset(path, final="pre_norm", rids=rids)
    return {
        dataset.capture(number).rid: dataset[number]["loss_mask"].tolist()
        for number in range(len(dataset))
    }


def write_output(folder: Path, number: int, run_id: str = RUN.run_id) -> Path:
    """What extract makes of one sample: a run with one capture of four tokens, and its line."""
    run = write_run(folder, replace(RUN, run_id=run_id))
    write_capture(run, 0, f"x-{number}", streams(4, number), run_id=run_id)
    write_samples(folder, Sample(number, f"s{number}", f"x-{number}", MASK))
    return folder


def test_the_folder_above_outputs_is_refused_with_their_names(tmp_path: Path) -> None:
    shards = [write_output(tmp_path / f"shard{n}", n, f"run-{n}") for n in range(5)]
    with pytest.raises(ConfigError) as refused:
        select(open_store(tmp_path))
    assert str(refused.value) == (
        f"{tmp_path} has no samples.jsonl, and the loss masks of captures here are in that of "
        f"{shards[0]}, {shards[1]}, {shards[2]} and 2 more: open each by itself, or put the lines "
        f"of all into {tmp_path / 'samples.jsonl'}"
    )
    assert masks(shards[1]) == {"x-1": [0, 0, 1, 1]}


def test_the_lines_of_all_shards_in_one_file_make_them_one_store(tmp_path: Path) -> None:
    shards = [write_output(tmp_path / f"shard{n}", n, f"run-{n}") for n in range(2)]
    lines = b"".join((shard / "samples.jsonl").read_bytes() for shard in shards)
    (tmp_path / "samples.jsonl").write_bytes(lines)
    assert masks(tmp_path) == {"x-0": [0, 0, 1, 1], "x-1": [0, 0, 1, 1]}


def test_the_topmost_of_two_is_named(tmp_path: Path) -> None:
    output = write_output(tmp_path / "deep" / "output", 0)
    write_samples(output / RUN.run_id, Sample(0, "", "x-0", ()))
    with pytest.raises(ConfigError, match=rf"in that of {output}: open that folder, or put its li"):
        select(open_store(tmp_path))


def test_captures_in_no_run_have_theirs_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "loose").mkdir()
    write_capture(tmp_path / "loose", 0, "r0", streams(4), indexed=False)
    write_samples(tmp_path / "loose", Sample(0, "", "r0", MASK))
    with pytest.raises(ConfigError, match=rf"in that of {tmp_path / 'loose'}: open that folder"):
        select(open_store(tmp_path))
    assert masks(tmp_path / "loose") == {"r0": [0, 0, 1, 1]}


def test_one_run_of_an_output_is_refused_and_so_is_a_folder_in_it(tmp_path: Path) -> None:
    output = write_output(tmp_path / "output", 0)
    run = output / RUN.run_id
    for folder in (run, run / "000000"):
        with pytest.raises(ConfigError) as refused:
            HiddenStatesDataset(folder, final="pre_norm")
        assert str(refused.value) == (
            f"{folder} has no samples.jsonl, and the loss masks of captures here are in that of "
            f"{output}: open that folder, or copy the file into {folder} to have these captures "
            "alone"
        )


def test_one_run_alone_can_be_had_with_a_copy_of_the_file(tmp_path: Path) -> None:
    output = write_output(tmp_path / "output", 0)
    other = write_run(output, replace(RUN, run_id="run-b"))
    write_capture(other, 0, "x-1", streams(4, 1), run_id="run-b")
    write_samples(output, *(Sample(n, "", f"x-{n}", MASK) for n in range(2)))
    (other / "samples.jsonl").write_bytes((output / "samples.jsonl").read_bytes())
    chosen = select(open_store(other))
    assert (chosen.positions, chosen.left_out) == ([0], {"samples without a capture": 1})
    assert masks(other) == {"x-1": [0, 0, 1, 1]}


def test_a_link_and_a_relative_path_lead_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = write_output(tmp_path / "output", 0)
    (tmp_path / "link").symlink_to(output / RUN.run_id)
    with pytest.raises(ConfigError, match=f"in that of {output}: "):
        select(open_store(tmp_path / "link"))
    monkeypatch.chdir(output / RUN.run_id)
    with pytest.raises(ConfigError, match=f"in that of {output}: "):
        select(open_store("."))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="in that of output: "):
        select(open_store("."))


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"id": "a", "input_ids": [1, 2], "loss_mask": [0, 1]}).encode() + b"\n",
        append_line(Sample(0, "", "of-another-store", MASK)),
        b"\x89PNG no text at all\n",
        b"",
    ],
)
def test_a_file_of_this_name_that_tells_of_other_things_changes_nothing(
    tmp_path: Path, data: bytes
) -> None:
    """Such as the input of extract, which may lie beside the dump directory of its server."""
    dump = write_store(tmp_path / "work" / "dump", (3, 4))
    (tmp_path / "work" / "samples.jsonl").write_bytes(data)
    ones = {"r0": [1] * 3, "r1": [1] * 4}
    for folder in (dump, dump / RUN.run_id, tmp_path):
        assert masks(folder) == ones


def test_samples_of_captures_that_are_not_asked_for_change_nothing(tmp_path: Path) -> None:
    write_output(tmp_path / "output", 0, "run-x")
    write_store(tmp_path / "dump", (3,), norm=None)
    assert masks(tmp_path, rids="r*") == {"r0": [1] * 3}
    with pytest.raises(ConfigError, match=rf"in that of {tmp_path / 'output'}: open that folder"):
        select(open_store(tmp_path))


def test_a_broken_samples_file_counts_in_an_output_of_extract(tmp_path: Path) -> None:
    """Its captures have masks, whatever became of the file."""
    output = write_output(tmp_path / "output", 0)
    (output / "samples.jsonl").write_bytes(b"{]\n")
    (output / EXTRACT_FILE).write_bytes(b"{}\n")
    for folder in (tmp_path, output / RUN.run_id):
        with pytest.raises(ConfigError, match=f"in that of {output}: open that folder"):
            select(open_store(folder))


def test_an_output_of_extract_without_its_samples_file_is_refused(tmp_path: Path) -> None:
    output = write_output(tmp_path / "output", 0)
    (output / "samples.jsonl").unlink()
    (output / EXTRACT_FILE).write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match=r"its samples\.jsonl, with the loss masks, is gone: put"):
        select(open_store(output))
    for folder in (tmp_path, output / RUN.run_id):
        with pytest.raises(ConfigError, match=f"in that of {output}: open that folder"):
            select(open_store(folder))


def test_an_output_above_without_its_samples_file_has_no_masks(tmp_path: Path) -> None:
    """Such as one that is new, and has the dump directory of its server inside."""
    dump = write_store(tmp_path / "output" / "dump", (3,))
    (tmp_path / "output" / EXTRACT_FILE).write_bytes(b"{}\n")
    for folder in (dump, dump / RUN.run_id):
        assert masks(folder) == {"r0": [1] * 3}


def test_the_mark_of_an_output_has_the_name_that_extract_gives_it() -> None:
    assert OUR_NAME_FOR_IT == EXTRACT_FILE
