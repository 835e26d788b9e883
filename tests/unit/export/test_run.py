"""An export goes on where it stopped, has no holes, and never leaves half a file."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from capture_files import RUN, states, write_capture
from hs_capture import Capture, ConfigError, open_store
from hs_capture.export.formats import format_named
from hs_capture.export.plan import Wish, make_plan
from hs_capture.export.run import Outcome, run
from unit.export.stores import streams, write_store


def export(
    store: Path,
    output: Path,
    name: str = "specforge",
    workers: int = 1,
    told: Callable[[Outcome], None] = lambda _: None,
    **wish: Any,
) -> Outcome:
    plan = make_plan(open_store(store), format_named(name), Wish(**wish))
    return run(plan, output, workers, told)


def tree(output: Path) -> dict[str, bytes]:
    """Every file below the folder."""
    return {
        path.relative_to(output).as_posix(): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file()
    }


def damage(store: Path, number: int) -> None:
    """Flip a byte in the first block of a capture."""
    (path,) = store.rglob(f"{number:09d}-x.hsc")
    data = bytearray(path.read_bytes())
    data[12] ^= 0xFF
    path.write_bytes(data)


def rows(output: Path, column: str = "input_ids") -> list[list[int]]:
    """A column of each row of a speculators export; a row's file must hold the row's token ids."""
    with pa.OSFile(str(output / "data-00000-of-00001.arrow")) as source:
        found = pa.ipc.open_stream(source).read_all().to_pylist()
    for number, row in enumerate(found):
        held = load_file(output / "hidden_states" / f"hs_{number}.safetensors")["token_ids"]
        assert held.tolist() == row["input_ids"]
    return [row[column] for row in found]


def test_a_second_run_does_nothing_and_changes_nothing(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    assert export(store, output).written == 4
    before = tree(output)
    again = export(store, output)
    assert (again.written, again.kept) == (0, 4)
    assert tree(output) == before


def test_captures_are_not_held_once_they_are_exported(tmp_path: Path) -> None:
    """However many there are, those of the next few samples are there, and no others."""
    store = write_store(tmp_path / "store", (2,) * 40)
    alive: list[int] = []

    def told(_: Outcome) -> None:
        alive.append(sum(type(thing) is Capture for thing in gc.get_objects()))

    assert export(store, tmp_path / "out", "speculators", told=told).written == 40
    assert len(alive) == 40
    assert max(alive) <= 10
    assert len(rows(tmp_path / "out")) == 40


def test_new_captures_are_added(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output)
    write_capture(store / RUN.run_id, 4, "r4", streams(3))
    again = export(store, output)
    assert (again.written, again.kept) == (1, 4)


def test_a_file_that_lost_its_end_is_written_again(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output)
    before = tree(output)
    path = sorted(output.rglob("*.ckpt"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    sorted(output.rglob("*.ckpt"))[2].unlink()
    again = export(store, output)
    assert (again.written, again.kept) == (2, 2)
    after = tree(output)
    assert {name for name in after if after[name] != before[name]} == {"exported.jsonl"}


def test_an_export_that_was_stopped_anywhere_goes_on_to_the_same_files(tmp_path: Path) -> None:
    """The run is broken off after each sample in turn, with the ledger's last line torn."""
    store = write_store(tmp_path / "store")
    export(store, tmp_path / "whole", "speculators")
    expected = tree(tmp_path / "whole")

    class StoppedError(Exception):
        pass

    for stop in range(1, 5):
        output = tmp_path / f"out-{stop}"

        def break_off(outcome: Outcome, stop: int = stop) -> None:
            if outcome.done == stop:
                raise StoppedError

        with pytest.raises(StoppedError):
            export(store, output, "speculators", told=break_off)
        assert json.loads((output / "export.json").read_text())["samples"] is None
        ledger = output / "exported.jsonl"
        ledger.write_bytes(ledger.read_bytes()[:-5])
        again = export(store, output, "speculators")
        assert (again.kept, again.written) == (stop - 1, 5 - stop)
        assert tree(output) == expected


def test_several_workers_write_what_one_writes(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", tuple(range(1, 13)))
    export(store, tmp_path / "one", "safetensors", workers=1)
    # The processes that serve workers end with their parent, so the parent is a process too.
    command = [Path(sys.executable).parent / "hs-capture", "export", "--format", "safetensors"]
    places = ["--store", store, "--output", tmp_path / "two", "--workers", "2"]
    # Workers look in the current directory first, and the checkout is not what is tested.
    subprocess.run([*command, *places], check=True, timeout=900, cwd=tmp_path)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_a_damaged_capture_is_reported_and_leaves_no_hole_in_the_rows(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, tmp_path / "whole", "speculators")
    damage(store, 1)
    outcome = export(store, output, "speculators")
    ((rid, cause),) = outcome.failed
    assert rid == "r1"
    assert "checksum" in cause
    ids = {r: open_store(store)[r].input_ids.tolist() for r in ("r0", "r2", "r3")}
    assert rows(output) == [ids["r0"], ids["r2"], ids["r3"]]
    # Once more, with the damage still there: nothing is written again.
    again = export(store, output, "speculators")
    assert (again.kept, again.written, len(again.failed)) == (3, 0, 1)
    damage(store, 1)
    mended = export(store, output, "speculators")
    assert mended.failed == []
    assert len(rows(output)) == 4
    assert tree(output / "hidden_states") == tree(tmp_path / "whole" / "hidden_states")


def test_values_that_are_not_finite_are_reported_and_not_exported(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store", (3,)), tmp_path / "out"
    bad = streams(5)
    bad["layer.3"] = states(5)
    bad["layer.3"][2, 1] = float("nan")
    write_capture(store / RUN.run_id, 1, "bad", bad)
    ((rid, cause),) = export(store, output).failed
    assert rid == "bad"
    assert "layer 3 is not finite in 1 of 5 rows, the first is row 2" in cause
    assert len(list(output.rglob("*.ckpt"))) == 1


def test_a_newer_capture_of_a_rid_takes_the_place_of_the_older(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store", (3,)), tmp_path / "out"
    export(store, output)
    write_capture(store / RUN.run_id, 1, "r0", streams(5))
    assert export(store, output).written == 1
    (path,) = output.rglob("*.ckpt")
    assert len(torch.load(path, weights_only=True)["input_ids"]) == 5


def test_files_of_captures_that_are_not_chosen_any_more_go(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output, "speculators")
    export(store, output, "speculators", rids="r[01]")
    assert len(rows(output)) == 2
    assert len(list(output.rglob("*.safetensors"))) == 2


def test_samples_whose_captures_are_gone_stop_the_next_run(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output)
    before = tree(output)
    open_store(store)["r2"].path.unlink()
    with pytest.raises(ConfigError, match=r"holds 1 sample whose capture is no longer in .*'r2'"):
        export(store, output)
    assert tree(output) == before


FULL_DISK = """
import json, subprocess, sys
from pathlib import Path

store, name = sys.argv[1:]
out = Path("/mnt/out")
command = [
    str(Path(sys.executable).parent / "hs-capture"), "export", "--store", store,
    "--format", name, "--output", str(out), "--workers", "1",
]

def files():
    found = [*out.rglob("*.ckpt"), *out.rglob("*.safetensors")]
    return {path.relative_to(out).as_posix(): path.stat().st_size for path in found}

first = subprocess.run(command, capture_output=True, text=True)
assert first.returncode == 2, first
assert "hs-capture export: " in first.stderr
assert "No space left" in first.stderr or "cannot be written" in first.stderr, first.stderr
assert list(out.rglob("*.tmp")) == []
lines = map(json.loads, (out / "exported.jsonl").read_text().splitlines())
written = files()
assert 0 < len(written) < 40, len(written)
assert written == {line["file"]: line["bytes"] for line in lines}
subprocess.run(["mount", "-o", "remount,size=4m", "/mnt"], check=True)
again = subprocess.run(command, capture_output=True, text=True)
assert again.returncode == 0, again
assert f"{40 - len(written)} samples written" in again.stdout, again.stdout
assert len(files()) == 40
"""


@pytest.mark.parametrize("name", ["specforge", "speculators"])
def test_a_full_disk_ends_the_export_with_nothing_half_written(tmp_path: Path, name: str) -> None:
    """The disk is a small tmpfs in a mount namespace, which goes with the process."""
    store = write_store(tmp_path / "store", (40,) * 40)
    mount = 'set -e; mount -t tmpfs -o size=128k none /mnt; exec "$@"'
    python = [sys.executable, "-c", FULL_DISK, store, name]
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    done = subprocess.run(
        [*unshare, "sh", "-c", mount, "sh", *python],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
