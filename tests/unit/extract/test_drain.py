"""Captures move from a dump directory to a store: all of them, once, whatever happens."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_files import RUN, norm_weight, states, write_capture, write_run
from capture_server import SECONDS, wait_until
from hs_capture import ConfigError, FormatError, StoreNotFoundError, open_store
from hs_capture.cli import main
from hs_capture.extract import drain as drain_module
from hs_capture.extract.claim import claim
from hs_capture.extract.drain import Drain
from hs_capture.extract.output import OutputRun, remove_sources
from hs_capture.format.index import IndexEntry, append_line, read_index
from hs_capture.format.run import RunInfo


def fill(run: Path, count: int, tokens: int = 5, first: int = 0) -> dict[str, list[float]]:
    """Publish captures; return the first state of each by rid."""
    told = {}
    for number in range(first, first + count):
        rows = states(tokens, seed=number)
        write_capture(
            run,
            number,
            f"r{number}",
            {"layer.1": rows, "layer.3": rows + 1, "final.pre_norm": rows + 2},
        )
        told[f"r{number}"] = rows[0].tolist()
    return told


def drain(dump: Path, output: Path) -> Drain:
    done = Drain(dump, output)
    done.drain()
    return done


def assert_all_once(output: Path, told: dict[str, list[float]]) -> None:
    """The store has each capture once, with its own rows, and so has its index."""
    store = open_store(output)
    assert Counter(capture.rid for capture in store) == Counter(told.keys())
    for rid, row in told.items():
        assert store[rid].aux_hidden_states((0, 1), [1])[0, 0].tolist() == row
        store[rid].last_hidden_states("pre_norm")
    indexed = [
        str(line.file)
        for index in output.glob("*/index-*.jsonl")
        for line in read_index(index)
        if line.file is not None
    ]
    assert len(indexed) == len(set(indexed)) == len(told)
    assert not [path for path in output.rglob("*") if path.name.endswith((".part", ".tmp"))]


def test_finished_captures_move_with_their_run(tmp_path: Path) -> None:
    """Mode, norm and index come along; the source keeps its run.json, and no capture."""
    dump, output = tmp_path / "dump", tmp_path / "deep" / "store"
    run = write_run(dump, replace(RUN, norm=norm_weight([1, 2, 3, 4])))
    told = fill(run, 3)
    (run / "000000" / "000000001-x.hsc").chmod(0o640)
    moved = drain(dump, output).moved
    assert (moved.captures, moved.incomplete, moved.tokens) == (3, 0, 15)
    assert moved.stored_bytes == sum(path.stat().st_size for path in output.rglob("*.hsc"))
    assert_all_once(output, told)
    assert open_store(output).runs == (RunInfo.read(run / "run.json"),)
    assert open_store(output)["r0"].last_hidden_states("post_norm").shape == (5, 4)
    modes = {path.name: path.stat().st_mode & 0o777 for path in output.rglob("*.hsc")}
    assert modes["000000001-x.hsc"] == 0o640
    assert list(dump.rglob("*.hsc")) == []
    assert (run / "run.json").exists()


def test_several_runs_and_ranks_go_to_one_store(tmp_path: Path) -> None:
    dump, output = tmp_path / "dump", tmp_path / "store"
    told = {}
    for i, rank in enumerate(["dp0.tp0", "dp1.tp0", "tp0"]):
        run = write_run(dump, replace(RUN, run_id=f"run-{i}", rank=rank, created=float(i)))
        told |= fill(run, 4, first=10 * i)
    drain(dump, output)
    assert_all_once(output, told)
    assert [run.rank for run in open_store(output).runs] == ["dp0.tp0", "dp1.tp0", "tp0"]
    assert sorted(path.name for path in output.glob("*/index-*")) == [
        "index-dp0.tp0.jsonl",
        "index-dp1.tp0.jsonl",
        "index-tp0.jsonl",
    ]


def test_one_run_can_be_drained_alone(tmp_path: Path) -> None:
    dump, output = tmp_path / "dump", tmp_path / "store"
    one = write_run(dump, replace(RUN, run_id="one"))
    other = write_run(dump, replace(RUN, run_id="other"))
    told = fill(one, 2)
    fill(other, 2, first=5)
    drain(one, output)
    assert_all_once(output, told)
    assert len(open_store(dump)) == 2


def test_what_comes_later_moves_later(tmp_path: Path) -> None:
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    told = fill(run, 2)
    mover = drain(dump, output)
    told |= fill(run, 2, first=2)
    assert mover.drain() == 2
    assert mover.drain() == 0
    assert_all_once(output, told)


def test_unfinished_captures_stay(tmp_path: Path) -> None:
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    (run / "open").mkdir()
    (run / "open" / "tp0-7.part").write_bytes(b"rows")
    told = fill(run, 1)
    drain(dump, output)
    assert_all_once(output, told)
    assert (run / "open" / "tp0-7.part").exists()


def test_incomplete_captures_move_and_losses_are_told(tmp_path: Path) -> None:
    """The index of the output says, once, which requests have no file at all."""
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    write_capture(run, 0, "part", {"layer.1": states(4)}, missing=[(1, 3)], reason="dropped")
    lost = IndexEntry(1, None, "lost", 9, 0, False, "file_system_full", ((0, 9),), 0, 0, 5.0)
    with (run / "index-tp0.jsonl").open("ab") as index:
        index.write(append_line(lost))
    moved = drain(dump, output).moved
    assert (moved.captures, moved.incomplete, moved.lost) == (1, 1, 1)
    assert drain(dump, output).moved.lost == 0
    assert open_store(output)["part"].missing == [(1, 3)]
    lines = read_index(output / "run-a" / "index-tp0.jsonl")
    assert [line.rid for line in lines] == ["part", "lost"]
    assert lines[1] == lost


def test_linked_rows_are_not_told_as_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only rows that nobody has make a capture incomplete; the last line says how many of each."""
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    rows = {"layer.1": states(4)}
    gone: dict[str, Any] = {"missing": [(0, 2)], "reason": "prefix_cache"}
    write_capture(run, 0, "source", rows, key=7)
    write_capture(run, 1, "linked", rows, key=8, links=((0, 2, 7),), **gone)
    write_capture(run, 2, "in part", rows, key=9, links=((0, 1, 7),), **gone)
    write_capture(run, 3, "not", rows, key=10, **gone)
    assert main(["drain", "--store", str(dump), "--output", str(output)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("moved 4 captures (")
    assert said.endswith(f" to {output}, 1 with rows of others, 2 incomplete")
    complete = [capture.rid for capture in open_store(output) if capture.complete]
    assert complete == ["source", "linked"]


def loss(sequence: int, key: int | None = None) -> IndexEntry:
    """A request without a file."""
    rid, gone = f"lost{sequence}", ((0, 9),)
    return IndexEntry(sequence, None, rid, 9, 0, False, "dropped", gone, 0, 0, 5.0, key)


def test_losses_around_a_broken_line_are_told(tmp_path: Path) -> None:
    run, output = write_run(tmp_path / "dump"), tmp_path / "store"
    lines = append_line(loss(0)), b"{broken\n", b"[]\n", append_line(loss(1))
    (run / "index-tp0.jsonl").write_bytes(b"".join(lines))
    mover = drain(tmp_path / "dump", output)
    assert mover.moved.lost == 2
    mover.drain()
    assert mover.moved.lost == 2
    assert read_index(output / "run-a" / "index-tp0.jsonl") == [loss(0), loss(1)]


@pytest.mark.parametrize("again", [False, True], ids=["following", "started again"])
def test_a_request_whose_capture_was_moved_is_not_lost(tmp_path: Path, again: bool) -> None:
    """A drain may take a capture before its line is there, and then the writer dies."""
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    rows = {"layer.1": states(3)}
    write_capture(run, 0, "r", rows, indexed=False, key=7)
    write_capture(run, 1, "without", rows, indexed=False)
    mover = drain(dump, output)
    with (run / "index-tp0.jsonl").open("ab") as index:
        index.write(b"".join(map(append_line, [loss(5, key=7), loss(6, key=8), loss(7)])))
    mover = Drain(dump, output) if again else mover
    mover.drain()
    assert mover.moved.lost == 2
    lines = read_index(output / "run-a" / "index-tp0.jsonl")
    assert [line for line in lines if line.file is None] == [loss(6, key=8), loss(7)]


def test_a_damaged_capture_stays_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    told = fill(run, 3)
    broken = run / "000000" / "000000001-x.hsc"
    data = bytearray(broken.read_bytes())
    data[20] ^= 1
    broken.write_bytes(data)
    assert main(["drain", "--store", str(dump), "--output", str(output)]) == 1
    printed = capsys.readouterr()
    assert f"left where it is: {broken}: stream" in printed.err
    assert "1 damaged one stays where it is" in printed.out
    assert broken.read_bytes() == data
    del told["r1"]
    assert_all_once(output, told)


def test_a_crash_after_any_step_is_made_good(tmp_path: Path) -> None:
    """A copy without a name, a name without a line, half a line, a line with its source left."""
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    told = fill(run, 4)
    files = sorted(run.glob("*/*.hsc"))
    taken = OutputRun(run, output)
    staged = [taken.stage(file) for file in files]
    taken.commit(staged[1:2])
    taken.commit(staged[2:3])
    remove_sources(staged[2:3])
    Path(staged[3].part).rename(output / "run-a" / "000000" / files[3].name)
    with (output / "run-a" / "index-tp0.jsonl").open("ab") as index:
        index.write(append_line(staged[3].entry)[:-9])
    assert drain(dump, output).moved.captures == 3
    assert_all_once(output, told)
    assert list(dump.rglob("*.hsc")) == []


def test_a_name_that_a_server_gave_twice_is_two_captures(tmp_path: Path) -> None:
    """A writer that died before it could index a capture has a successor that takes its number."""
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    for seed in (1, 2, 3):
        write_capture(run, 0, "r", {"layer.1": states(3, seed=seed)}, captured_at=float(seed))
        drain(dump, output)
    found = open_store(output).captures("r")
    rows = {tuple(c.aux_hidden_states()[0, 0].tolist()) for c in found}
    assert rows == {tuple(states(3, seed=seed)[0].tolist()) for seed in (1, 2, 3)}


@pytest.mark.parametrize("again", [False, True], ids=["following", "started again"])
def test_the_norm_of_changed_weights_comes_along(tmp_path: Path, again: bool) -> None:
    """run.json grows while the server runs; what new weights computed is read with their norm."""
    first, second = norm_weight([1.0, 1.0, 1.0, 1.0]), norm_weight([2.0, 2.0, 2.0, 2.0])
    info: RunInfo = replace(RUN, norm=first)
    run = write_run(tmp_path / "dump", info)
    output = tmp_path / "store"
    rows = {f"layer.{layer}": states(3) for layer in RUN.layer_ids} | {"final.pre_norm": states(3)}
    write_capture(run, 0, "before", rows)
    moving = drain(tmp_path / "dump", output)
    replace(info, norms={"1": second}).write(run / "run.json")
    write_capture(run, 1, "after", rows, weights_version=1)
    (drain(tmp_path / "dump", output) if again else moving).drain()
    store = open_store(output)
    before, after = (store[rid].last_hidden_states("post_norm") for rid in ("before", "after"))
    assert (after == 2 * before).all()


def test_another_run_of_the_same_name_is_refused(tmp_path: Path) -> None:
    dump, output = tmp_path / "dump", tmp_path / "store"
    fill(write_run(dump), 1)
    write_run(output, replace(RUN, created=77.0))
    with pytest.raises(ConfigError, match="is of another run than"):
        drain(dump, output)
    assert len(open_store(dump)) == 1


def test_a_damaged_run_file_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "dump")
    (run / "run.json").write_text("{")
    with pytest.raises(FormatError, match=r"run\.json: not valid JSON"):
        drain(tmp_path / "dump", tmp_path / "store")


@pytest.mark.parametrize("inner", ["", "store", "run-a/store"])
def test_directories_that_lie_in_each_other_are_refused(tmp_path: Path, inner: str) -> None:
    write_run(tmp_path)
    with pytest.raises(ConfigError, match="lie in each other"):
        Drain(tmp_path, tmp_path / inner)


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "dump")
    output = tmp_path / "file"
    output.write_text("mine")
    with pytest.raises(ConfigError, match=f"^--output {output} is a file: give a directory"):
        Drain(tmp_path / "dump", output)
    assert output.read_text() == "mine"


def test_two_at_a_time_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when one of them was given the run, and the other the directory around it."""
    run = write_run(tmp_path / "dump")
    arguments = ["drain", "--store", str(run), "--output", str(tmp_path / "store")]
    with claim(tmp_path / "dump", alone=True), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "is in use by another hs-capture drain or extract" in capsys.readouterr().err
    assert main(arguments) == 0


def test_no_directory_and_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreNotFoundError, match="there is no such directory"):
        drain(tmp_path / "none", tmp_path / "store")
    (tmp_path / "dump").mkdir()
    arguments = ["drain", "--store", str(tmp_path / "dump"), "--output", str(tmp_path / "store")]
    assert main(arguments) == 0
    assert "holds no run" in capsys.readouterr().out
    assert not (tmp_path / "store").exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "hs-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_keeps_the_source(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file system, nothing is half-written, and later the rest goes on."""
    dump, output = tmp_path / "dump", disk / "store"
    run = write_run(dump)
    told = fill(run, 12, tokens=150)
    with pytest.raises(SystemExit) as ended:
        main(["drain", "--store", str(dump), "--output", str(output)])
    assert ended.value.code == 2
    assert f"{output}" in capsys.readouterr().err.splitlines()[-1]
    there = {capture.rid for capture in open_store(output)}
    left = {capture.rid for capture in open_store(dump)}
    assert there | left == told.keys()
    assert there & left == set()
    assert 0 < len(there) < 12
    assert_all_once(output, {rid: told[rid] for rid in there})
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    drain(dump, output)
    assert_all_once(output, told)


def test_losses_wait_for_room(tmp_path: Path, disk: Path) -> None:
    """Those that a full disk does not take are told when there is room again."""
    run = write_run(tmp_path / "dump")
    taken = OutputRun(run, disk / "store")
    (run / "index-tp0.jsonl").write_bytes(append_line(loss(0)))
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    with pytest.raises(OSError, match="No space left"):
        taken.carry_losses()
    with (run / "index-tp0.jsonl").open("ab") as index:
        index.write(append_line(loss(1)))
    (disk / "filler").unlink()
    assert taken.carry_losses() == 2
    assert taken.carry_losses() == 0
    assert read_index(disk / "store" / "run-a" / "index-tp0.jsonl") == [loss(0), loss(1)]


def test_follow_waits_for_room(tmp_path: Path, disk: Path) -> None:
    """A full disk does not end it: when there is room again the rest moves."""
    dump, output = tmp_path / "dump", disk / "store"
    told = fill(write_run(dump), 12, tokens=150)
    said: list[str] = []
    mover = Drain(dump, output, say=said.append)

    def goes_on() -> bool:
        if said:
            subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        return mover.moved.captures < len(told)

    mover.follow(goes_on)
    assert said == [f"{output}: no room is left; captures wait in {dump}"]
    assert_all_once(output, told)


def test_a_small_tmpfs_is_enough(tmp_path: Path) -> None:
    """300 MB go through 32 MiB of memory: nothing is lost, the server only waits."""
    child = Path(__file__).with_name("small_tmpfs_child.py")
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, str(child), str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    moved, blocked = map(int, done.stdout.split()[-2:])
    assert moved > 300e6
    assert blocked > 0


def test_a_drain_can_be_ended_between_two_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was moved is whole, the rest is where it was, and the next call goes on."""
    monkeypatch.setattr(drain_module, "BATCH", 2)
    dump, output = tmp_path / "dump", tmp_path / "store"
    told = fill(write_run(dump), 7)
    mover = Drain(dump, output)
    assert mover.drain(lambda: mover.moved.captures < 4) == 4
    assert len(open_store(output)) == 4
    assert len(list(dump.rglob("*.hsc"))) == 3
    assert mover.drain() == 3
    assert_all_once(output, told)


def test_ctrl_c_ends_a_drain_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes while the first batch moves; that batch is told of, and nothing is lost."""
    monkeypatch.setattr(drain_module, "BATCH", 2)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    move = Drain._move

    def interrupted(self: Drain, *arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        move(self, *arguments)

    monkeypatch.setattr(Drain, "_move", interrupted)
    dump, output = tmp_path / "dump", tmp_path / "store"
    told = fill(write_run(dump), 5)
    with pytest.raises(SystemExit) as ended:
        main(["drain", "--store", str(dump), "--output", str(output)])
    assert ended.value.code == 130
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    said = capsys.readouterr()
    assert said.out.startswith("moved 2 captures (")
    assert said.err == "\nhs-capture drain: interrupted; run it again to go on\n"
    monkeypatch.undo()
    Drain(dump, output).drain()
    assert_all_once(output, told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_ends_well_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, and what a service manager sends."""
    dump, output = tmp_path / "dump", tmp_path / "store"
    run = write_run(dump)
    arguments = ["drain", "--store", str(dump), "--output", str(output), "--follow"]
    following = subprocess.Popen(
        [sys.executable, "-m", "hs_capture.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # What comes in the second round tells that the first one is over, and counted.
        told = fill(run, 3)
        wait_until(lambda: not list(run.rglob("*.hsc")), "the first round")
        told |= fill(run, 1, first=3)
        wait_until(lambda: not list(run.rglob("*.hsc")), "the second round")
        following.send_signal(number)
        said, errors = following.communicate(timeout=SECONDS)
    finally:
        following.kill()
        following.wait()
    assert (following.returncode, errors) == (0, "")
    summary = r"moved [34] captures \([0-9.]+ k?B\) to " + re.escape(str(output))
    assert re.fullmatch(summary, said.splitlines()[-1])
    assert_all_once(output, told)
    assert list(dump.rglob("*.hsc")) == []


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """However often it is killed, in the end everything is there once."""
    dump, output = tmp_path / "dump", tmp_path / "store"
    told = {}
    for i in range(3):
        run = write_run(dump, replace(RUN, run_id=f"run-{i}"))
        told |= fill(run, 100, tokens=9, first=1000 * i)
    arguments = ["drain", "--store", str(dump), "--output", str(output), "--workers", "2"]
    chance = random.Random(5)
    kills = 0
    for _ in range(10):
        enough = len(_names(output)) + chance.randrange(1, 25)
        with subprocess.Popen([sys.executable, "-m", "hs_capture.cli", *arguments]) as process:
            while process.poll() is None and len(_names(output)) < enough:
                time.sleep(0.002)
            kills += process.poll() is None
            process.kill()
    assert kills > 2
    assert main(arguments) == 0
    assert_all_once(output, told)


def _names(output: Path) -> set[Path]:
    return set(output.rglob("*"))
