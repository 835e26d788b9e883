"""What the output store has is known again after any crash, and each sample has one capture."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture_files import RUN, states, write_capture, write_run
from hs_capture import ConfigError, FormatError, open_store
from hs_capture.extract.judgement import problem_of
from hs_capture.extract.ledger import Ledger, number_of, rid_of
from hs_capture.format.index import read_index
from hs_capture.samples import Sample, read_samples
from hs_capture.selection import select

KEY = "x0a"


def sample(number: int) -> Sample:
    return Sample(number, f"s{number}", rid_of(KEY, number, 1, number + 1), ((0, 2),))


def published(dump: Path, count: int) -> tuple[Path, list[Path]]:
    """A run with captures of the samples 0 to `count` - 1, named as the writer names them."""
    run = write_run(dump)
    for number in range(count):
        rows = states(3, seed=number)
        streams = {"layer.1": rows, "final.pre_norm": rows + 1}
        entry = write_capture(run, number, sample(number).rid, streams)
        path = run / str(entry.file)
        path.rename(path.with_name(f"{number:09d}-{sample(number).rid}.hsc"))
    return run, sorted(run.rglob("*.hsc"))


def test_samples_enter_together_and_are_known_again(tmp_path: Path) -> None:
    """From many threads: each sample once, with one line, and its source is gone."""
    run, files = published(tmp_path / "dump", 24)
    output = tmp_path / "out"
    ledger = Ledger(output, KEY, 30)

    def enter(number: int) -> None:
        target, staged = ledger.stage(run, files[number])
        ledger.enter(target, staged, sample(number))

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_samples(output)
    assert found == {sample(number).rid: sample(number) for number in range(24)}
    assert sorted(open_store(output).rids()) == sorted(found)
    assert list(run.rglob("*.hsc")) == []
    again = Ledger(output, KEY, 30)
    assert [number for number in range(30) if again.has(number)] == list(range(24))
    assert again.totals == ledger.totals
    assert (again.totals.captured, again.totals.tokens) == (24, 72)
    assert again.unclaimed == {}
    assert not Ledger(output, "xother", 30).has(0)


def test_a_crash_between_capture_and_line_is_found(tmp_path: Path) -> None:
    """Half a line counts as none; the capture waits for its line and gets it, once."""
    run, files = published(tmp_path / "dump", 2)
    output = tmp_path / "out"
    ledger = Ledger(output, KEY, 2)
    target, staged = ledger.stage(run, files[0])
    ledger.enter(target, staged, sample(0))
    _, staged = ledger.stage(run, files[1])
    target.commit([staged])
    with (output / "samples.jsonl").open("ab") as file:
        file.write(b'{"id":"s1","samp')
    again = Ledger(output, KEY, 2)
    assert again.has(0)
    assert not again.has(1)
    path, entry = again.unclaimed[1]
    assert problem_of(path, np.arange(3) + 100) is None
    again.claim(entry, sample(1))
    assert read_samples(output) == {sample(n).rid: sample(n) for n in range(2)}
    assert Ledger(output, KEY, 2).totals.captured == 2


def test_a_last_line_that_lacks_its_line_end_counts_and_gets_it(tmp_path: Path) -> None:
    """As readers have it; the loss mask in it may have been put there by hand."""
    output = tmp_path / "out"
    store_of(tmp_path / "dump", output, 2)
    path = output / "samples.jsonl"
    lines = path.read_bytes()
    path.write_bytes(lines[:-1])
    again = Ledger(output, KEY, 3)
    assert ([again.has(n) for n in range(3)], again.unclaimed) == ([True, True, False], {})
    assert path.read_bytes() == lines


def test_a_line_whose_capture_is_gone_counts_for_nothing(tmp_path: Path) -> None:
    run, files = published(tmp_path / "dump", 1)
    output = tmp_path / "out"
    ledger = Ledger(output, KEY, 1)
    ledger.enter(*ledger.stage(run, files[0]), sample(0))
    capture = next(output.rglob("*.hsc"))
    capture.write_bytes(capture.read_bytes()[:-1])
    # verify finds the damage and says to delete the file first.
    assert Ledger(output, KEY, 1).has(0)
    capture.unlink()
    assert not Ledger(output, KEY, 1).has(0)


def store_of(dump: Path, output: Path, count: int) -> Ledger:
    """An output with the samples 0 to `count` - 1."""
    run, files = published(dump, count)
    ledger = Ledger(output, KEY, count)
    for number in range(count):
        ledger.enter(*ledger.stage(run, str(files[number])), sample(number))
    return ledger


@pytest.mark.parametrize("lost", ["gone", "empty", "a line in the middle", "all lines"])
def test_samples_are_known_without_their_index(tmp_path: Path, lost: str) -> None:
    """The captures speak for themselves, so nothing is fetched a second time."""
    output = tmp_path / "out"
    ledger = store_of(tmp_path / "dump", output, 3)
    index = output / "run-a" / "index-tp0.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    if lost == "gone":
        index.unlink()
    elif lost == "empty":
        index.write_bytes(b"")
    elif lost == "all lines":
        index.write_bytes(b"\n{\n[1]\n{}\n")
    else:
        index.write_bytes(lines[0] + lines[1][20:] + lines[2])
    again = Ledger(output, KEY, 3)
    assert [again.has(number) for number in range(3)] == [True] * 3
    assert again.totals == ledger.totals
    assert again.unclaimed == {}
    assert [(run.run_id, version) for run, version in again.origins()] == [("run-a", 0)]


def test_a_crash_between_name_and_index_is_found(tmp_path: Path) -> None:
    """A capture of which neither an index nor samples.jsonl has a line waits for both."""
    output = tmp_path / "out"
    store_of(tmp_path / "dump", output, 2)
    index, lines = output / "run-a" / "index-tp0.jsonl", output / "samples.jsonl"
    for path in (index, lines):
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    again = Ledger(output, KEY, 2)
    assert (again.has(0), again.has(1)) == (True, False)
    path, entry = again.unclaimed[1]
    assert problem_of(path, np.arange(3) + 100) is None
    again.claim(entry, sample(1))
    assert read_samples(output) == {sample(n).rid: sample(n) for n in range(2)}
    assert Ledger(output, KEY, 2).totals.captured == 2


def test_the_second_capture_of_a_sample_waits_for_its_own_line(tmp_path: Path) -> None:
    """The line of the first, whose file was taken away, is none of the second."""
    output = tmp_path / "out"
    ledger = store_of(tmp_path / "dump", output, 1)
    next(output.rglob("*.hsc")).unlink()
    second = replace(sample(0), rid=rid_of(KEY, 0, 2, 1))
    run = tmp_path / "dump" / "run-a"
    entry = write_capture(run, 7, second.rid, {"layer.1": states(3)})
    target, staged = ledger.stage(run, str(run / str(entry.file)))
    target.commit([staged])
    again = Ledger(output, KEY, 1)
    assert not again.has(0)
    again.claim(again.unclaimed[0][1], second)
    assert Ledger(output, KEY, 1).has(0)
    assert open_store(output).rids() == [second.rid]
    selected = select(open_store(output)).samples
    assert selected == [second]


def test_a_capture_that_is_superseded_is_not_waited_for(tmp_path: Path) -> None:
    """It has no line, its sample has another capture: that one counts, once."""
    output = tmp_path / "out"
    ledger = store_of(tmp_path / "dump", output, 1)
    run = tmp_path / "dump" / "run-a"
    entry = write_capture(run, 7, rid_of(KEY, 0, 2, 1), {"layer.1": states(3)})
    target, staged = ledger.stage(run, str(run / str(entry.file)))
    target.commit([staged])
    again = Ledger(output, KEY, 1)
    assert (again.has(0), again.unclaimed, again.totals) == (True, {}, ledger.totals)


def test_a_sample_that_is_there_twice_counts_once_and_readers_refuse_it(tmp_path: Path) -> None:
    """As earlier releases left it when an index was lost."""
    output = tmp_path / "out"
    ledger = store_of(tmp_path / "dump", output, 1)
    second = replace(sample(0), rid=rid_of(KEY, 0, 2, 1))
    run = tmp_path / "dump" / "run-a"
    entry = write_capture(run, 7, second.rid, {"layer.1": states(3)})
    ledger.enter(*ledger.stage(run, str(run / str(entry.file))), second)
    again = Ledger(output, KEY, 1)
    assert (again.has(0), again.unclaimed, again.totals.captured) == (True, {}, 1)
    twice = r"sample 0 is there twice, as rid 'x0a-00000000-1.1' and as rid 'x0a-00000000-2.1'"
    with pytest.raises(FormatError, match=twice):
        select(open_store(output))


def test_captures_without_their_run_are_refused(tmp_path: Path) -> None:
    """Those of this extraction; of others that lie there it knows nothing."""
    output = tmp_path / "out"
    store_of(tmp_path / "dump", output, 2)
    (output / "run-a" / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"/run-a holds captures, but no run\.json: put it back"):
        Ledger(output, KEY, 2)
    assert not Ledger(output, "x0", 2).has(0)


def test_a_damaged_capture_that_no_index_names_is_refused(tmp_path: Path) -> None:
    """By its name it is of this extraction; without it, its sample is fetched again."""
    output = tmp_path / "out"
    store_of(tmp_path / "dump", output, 2)
    (output / "run-a" / "index-tp0.jsonl").unlink()
    damaged = sorted(output.rglob("*.hsc"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=f"^{damaged}: .* names this file: remove it and run"):
        Ledger(output, KEY, 2)
    damaged.unlink()
    again = Ledger(output, KEY, 2)
    assert (again.has(0), again.has(1)) == (True, False)


def test_a_damaged_capture_of_others_is_not_opened(tmp_path: Path) -> None:
    """It is none of this extraction's samples, so nothing would be fetched again without it."""
    output = tmp_path / "out"
    store_of(tmp_path / "dump", output, 1)
    other = write_run(output, replace(RUN, run_id="run-b"))
    (other / "000000").mkdir()
    (other / "000000" / "000000000-chat-7.hsc").write_bytes(b"cut off")
    again = Ledger(output, KEY, 2)
    assert [again.has(number) for number in range(2)] == [True, False]


@pytest.mark.parametrize("place", ["backup/run-a", ".snapshot/run-a", ".Trash-1000"])
def test_copies_of_captures_that_are_kept_in_the_output_are_passed_over(
    tmp_path: Path, place: str
) -> None:
    output = tmp_path / "out"
    ledger = store_of(tmp_path / "dump", output, 2)
    shutil.copytree(output / "run-a", output / place)
    if place.startswith(".T"):
        (output / place / "run.json").unlink()
    again = Ledger(output, KEY, 2)
    assert [again.has(number) for number in range(2)] == [True, True]
    assert again.totals == ledger.totals


def test_a_folder_that_may_not_be_looked_into_is_passed_over(nobody_s: Path) -> None:
    """The lost+found of a file system whose mount point is the output, from the first run on."""
    output = nobody_s / "out"
    assert not Ledger(output, KEY, 1).has(0)
    store_of(nobody_s / "dump", output, 1)
    assert Ledger(output, KEY, 1).has(0)


@pytest.fixture
def nobody_s() -> Iterator[Path]:
    """A folder whose `out` has a lost+found that the test, if root's, may not look into."""
    # Not in tmp_path, whose parents are open to the user alone who runs the tests.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lost = folder / "out" / "lost+found"
        lost.mkdir(parents=True)
        lost.chmod(0)
        root = os.geteuid() == 0
        if root:
            for path in (folder, folder / "out"):
                os.chown(path, 65534, -1)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            lost.chmod(0o700)


@pytest.mark.parametrize("line", [b"\n", b"{\n", b"[1]\n", b"{}\n", b'{"rid":3}\n', b"\xff\n"])
def test_a_broken_line_of_samples_is_named(tmp_path: Path, line: bytes) -> None:
    output = tmp_path / "out"
    store_of(tmp_path / "dump", output, 2)
    path = output / "samples.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + second)
    with pytest.raises(ConfigError, match=f"^{path}: line 2: .*; remove that line and run"):
        Ledger(output, KEY, 2)
    path.write_bytes(first)
    again = Ledger(output, KEY, 2)
    again.claim(again.unclaimed[1][1], sample(1))
    assert read_samples(output) == {sample(n).rid: sample(n) for n in range(2)}


def test_half_copies_of_a_killed_extraction_are_removed(tmp_path: Path) -> None:
    """Of whatever run, when the output is taken up again; those of others stay."""
    run, files = published(tmp_path / "dump", 1)
    output = tmp_path / "out"
    _, mine = Ledger(output, KEY, 1).stage(run, str(files[0]))
    other = Path(mine.part).with_name(".000000009-x0b-00000000-1.1.hsc.part")
    other.touch()
    Ledger(output, KEY, 1)
    assert list(output.rglob("*.part")) == [other]


def test_a_full_disk_leaves_the_source_and_no_half_line(tmp_path: Path) -> None:
    run, files = published(tmp_path / "dump", 1)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "hs-test", str(disk)], check=True)
    try:
        ledger = Ledger(disk / "out", KEY, 1)
        target, staged = ledger.stage(run, files[0])
        (disk / "out" / "samples.jsonl").write_bytes(b"")
        with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        with pytest.raises(OSError, match="No space left"):
            ledger.enter(target, staged, sample(0))
        assert files[0].exists()
        assert (disk / "out" / "samples.jsonl").read_bytes() == b""
        (disk / "filler").unlink()
        target, staged = ledger.stage(run, files[0])
        ledger.enter(target, staged, sample(0))
        assert not files[0].exists()
        assert len(open_store(disk / "out")) == 1
        assert len(read_index(disk / "out" / "run-a" / "index-tp0.jsonl")) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("again", [False, True], ids=["in one session", "started again"])
def test_a_run_has_captures_of_one_version_of_the_weights(tmp_path: Path, again: bool) -> None:
    """A later session knows the version, too; another run may have another."""
    run, files = published(tmp_path / "dump", 1)
    other = write_run(tmp_path / "dump", replace(RUN, run_id="run-b"))
    rows = {"layer.1": states(3)}
    for number, folder in ((1, run), (2, other)):
        entry = write_capture(folder, number, sample(number).rid, rows, weights_version=1)
        files.append(folder / str(entry.file))
    output = tmp_path / "out"
    ledger = Ledger(output, KEY, 3)
    ledger.enter(*ledger.stage(run, files[0]), sample(0))
    if again:
        ledger = Ledger(output, KEY, 3)
    target, staged = ledger.stage(run, files[1])
    with pytest.raises(ConfigError, match=r"is of version 1, those of .*/run-a are of version 0:"):
        ledger.enter(target, staged, sample(1))
    assert not Path(staged.part).exists()
    ledger.enter(*ledger.stage(other, files[2]), sample(2))
    assert read_samples(output).keys() == {sample(0).rid, sample(2).rid}
    assert sorted(open_store(output).rids()) == [sample(0).rid, sample(2).rid]


ROWS = states(3)


@pytest.mark.parametrize(
    ("streams", "more", "ids", "message"),
    [
        ({"layer.1": ROWS}, {}, [0, 1, 2, 3], "computed 3 tokens of a prompt of 4"),
        ({"layer.1": ROWS}, {}, [0, 9, 2], "token 1 is 1 in the capture, not 9"),
        ({"layer.1": ROWS * np.nan}, {}, [0, 1, 2], "12 values are not finite"),
        ({"layer.1": ROWS * 0}, {}, [0, 1, 2], "all values are zero"),
        ({"layer.1": ROWS, "layer.3": ROWS}, {}, [0, 1, 2], "hold the same values"),
        (
            {"layer.1": ROWS},
            {"missing": [(0, 1)], "reason": "dropped"},
            [0, 1, 2],
            "the capture is incomplete",
        ),
    ],
)
def test_what_is_wrong_with_a_capture_is_said(
    tmp_path: Path, streams: Any, more: Any, ids: list[int], message: str
) -> None:
    run = write_run(tmp_path)
    entry = write_capture(run, 0, "r", streams, **more)
    assert message in str(problem_of(run / str(entry.file), np.array(ids)))


def test_nothing_is_wrong_with_a_good_capture(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    entry = write_capture(run, 0, "r", {"layer.1": ROWS})
    assert problem_of(run / str(entry.file), np.arange(3)) is None


def test_rids_name_their_sample() -> None:
    assert number_of(rid_of(KEY, 12, 3, 4), KEY) == 12
    assert number_of(rid_of(KEY, 10**9, 3, 4), KEY) == 10**9
    for other in ("x0a-probe-1.0", "x0b-00000012-1.1", "x0a", "", "x0a-"):
        assert number_of(other, KEY) is None
