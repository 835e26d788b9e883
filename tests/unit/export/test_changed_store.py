"""What changed in the store since the last export is written again, and what did not stays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from capture_files import RUN, write_capture, write_run
from hs_capture import open_store
from hs_capture.export.run import Outcome
from hs_capture.samples import Runs, Sample
from unit.export.stores import NORM, streams, write_samples, write_store
from unit.export.test_run import export, rows, tree


class StoppedError(Exception):
    pass


def stop_at(done: int) -> Callable[[Outcome], None]:
    """Break an export off once so many samples are settled."""

    def told(outcome: Outcome) -> None:
        if outcome.done == done:
            raise StoppedError

    return told


def samples(*masks: Runs, first: int = 0) -> list[Sample]:
    """A sample a mask, for r0, r1 and so on."""
    return [Sample(first + n, f"id-{n}", f"r{first + n}", mask) for n, mask in enumerate(masks)]


def mask_in(output: Path, name: str, number: int) -> list[int]:
    """The loss mask in the file of a sample."""
    suffix = {"specforge": "ckpt", "safetensors": "safetensors"}.get(name, "pt")
    (path,) = output.rglob(f"*{number:09d}.{suffix}")
    content = load_file(path) if name == "safetensors" else torch.load(path)
    found: list[int] = content["loss_mask"].tolist()
    return found


@pytest.mark.parametrize("name", ["specforge", "speculators-v1", "modelopt", "safetensors"])
def test_a_loss_mask_that_was_changed_is_written_again(tmp_path: Path, name: str) -> None:
    store, output = write_store(tmp_path / "store", (6, 6, 6)), tmp_path / "out"
    write_samples(store, *samples(((0, 6),), ((0, 6),), ((0, 6),)))
    export(store, output, name)
    write_samples(store, *samples(((0, 6),), ((4, 6),), ((0, 6),)))
    again = export(store, output, name)
    assert (again.written, again.kept) == (1, 2)
    assert [mask_in(output, name, number) for number in range(3)] == [
        [1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1],
        [1, 1, 1, 1, 1, 1],
    ]
    assert export(store, output, name).kept == 3


def test_masks_beside_the_files_of_the_states_leave_these_as_they_are(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store", (6, 6)), tmp_path / "out"
    write_samples(store, *samples(((0, 6),), ((0, 6),)))
    export(store, output, "speculators")
    before = tree(output / "hidden_states")
    write_samples(store, *samples(((0, 6),), ((4, 6),)))
    again = export(store, output, "speculators")
    assert (again.written, again.kept) == (0, 2)
    assert rows(output, "loss_mask") == [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert tree(output / "hidden_states") == before


def test_a_name_that_was_changed_is_written_again(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store", (6,)), tmp_path / "out"
    write_samples(store, *samples(((0, 6),)))
    export(store, output, "modelopt")
    write_samples(store, replace(samples(((0, 6),))[0], id="renamed"))
    assert export(store, output, "modelopt").written == 1
    (path,) = output.rglob("*.pt")
    assert torch.load(path)["conversation_id"] == "renamed"


def write_two_runs(dump: Path) -> tuple[Path, Path]:
    """Two runs whose captures have the same rids, lengths and file names."""
    for seed, run_id in ((0, "run-a"), (50, "run-b")):
        run = write_run(dump, replace(RUN, run_id=run_id, norm=NORM))
        for number in range(3):
            write_capture(run, number, f"r{number}", streams(5, seed + number), run_id=run_id)
    return dump / "run-a", dump / "run-b"


def exported_states(output: Path) -> list[torch.Tensor]:
    """The states of the layers, [T, K * H], of each file of a SpecForge export."""
    return [torch.load(path)["aux_hidden_state"][0] for path in sorted(output.rglob("*.ckpt"))]


def captured_states(store: Path) -> list[torch.Tensor]:
    """The same of each capture of a store."""
    return [capture.aux_hidden_states().flatten(1) for capture in open_store(store)]


def test_another_run_in_the_same_folder_is_exported_with_its_own_states(tmp_path: Path) -> None:
    one, other = write_two_runs(tmp_path / "dump")
    output = tmp_path / "out"
    export(one, output)
    again = export(other, output)
    assert (again.written, again.kept) == (3, 0)
    found, wanted, before = map(
        torch.stack, (exported_states(output), captured_states(other), captured_states(one))
    )
    assert torch.equal(found, wanted)
    assert not torch.equal(found, before)
    assert export(other, output).kept == 3


def test_another_file_under_the_name_of_a_loose_capture_is_exported(tmp_path: Path) -> None:
    one, other = write_two_runs(tmp_path / "dump")
    loose, output = tmp_path / "loose", tmp_path / "out"
    loose.mkdir()
    captures = sorted(one.rglob("*.hsc"))
    for path in captures:
        (loose / path.name).write_bytes(path.read_bytes())
    export(loose, output, "safetensors")
    (path,) = other.rglob("000000001-x.hsc")
    (loose / path.name).write_bytes(path.read_bytes())
    again = export(loose, output, "safetensors")
    assert (again.written, again.kept) == (1, 2)
    (changed,) = output.rglob("*_000000001.safetensors")
    wanted = open_store(other)["r1"].aux_hidden_states(layers=[3])[:, 0]
    assert torch.equal(load_file(changed)["layer.3"], wanted)


def test_a_capture_that_lost_its_end_is_not_taken_for_the_one_exported(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output)
    (path,) = store.rglob("000000002-x.hsc")
    path.write_bytes(path.read_bytes()[:7])
    again = export(store, output)
    assert (again.written, again.kept, [rid for rid, _ in again.failed]) == (0, 3, ["r2"])


def test_lines_of_an_early_version_are_read_and_their_files_written_again(tmp_path: Path) -> None:
    """They do not say what a file was made of, so it may be of other captures or masks."""
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output)
    before = tree(output)
    for path in output.rglob("*.ckpt"):
        path.write_bytes(bytes(path.stat().st_size))
    ledger = output / "exported.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    names = ["number", "file", "source", "id", "rid", "tokens", "bytes"]
    early = [{name: line[name] for name in names} for line in lines]
    ledger.write_text("".join(f"{json.dumps(line)}\n" for line in early))
    again = export(store, output)
    assert (again.written, again.kept) == (4, 0)
    ledger.write_bytes(before["exported.jsonl"])
    assert tree(output) == before
    assert export(store, output).kept == 4


@pytest.mark.parametrize(
    ("name", "closing"), [("speculators", "state.json"), ("speculators-v1", "sample_lengths.json")]
)
def test_a_folder_whose_files_change_is_closed_only_at_the_end(
    tmp_path: Path, name: str, closing: str
) -> None:
    """r0 comes late and takes the first place: all files get other samples than before."""
    store, output = tmp_path / "store", tmp_path / "out"
    run = write_run(store, replace(RUN, norm=NORM))
    for number in (1, 2, 3):
        write_capture(run, number, f"r{number}", streams(6, number))
    write_samples(store, *samples(((0, 6),), ((0, 6),), ((0, 6),), first=1))
    export(store, output, name)
    assert (output / closing).is_file()
    write_capture(run, 4, "r0", streams(6, 9))
    write_samples(store, *samples(((1, 6),), ((1, 6),), ((1, 6),), ((1, 6),)))
    with pytest.raises(StoppedError):
        export(store, output, name, told=stop_at(2))
    assert not (output / closing).exists()
    assert export(store, output, name).failed == []
    export(store, tmp_path / "fresh", name)
    new, fresh = tree(output), tree(tmp_path / "fresh")
    del new["exported.jsonl"], fresh["exported.jsonl"]
    assert new == fresh


def test_a_folder_that_loses_a_file_is_closed_only_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output, "speculators")

    remove = os.unlink

    def unlink(path: str) -> None:
        if path.endswith(".safetensors"):
            raise StoppedError
        remove(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        with pytest.raises(StoppedError):
            export(store, output, "speculators", rids="r[012]")
    assert not (output / "state.json").exists()
    assert export(store, output, "speculators", rids="r[012]").kept == 3
    assert len(rows(output)) == 3


def test_a_folder_that_only_grows_stays_as_it_was_until_the_end(tmp_path: Path) -> None:
    store, output = write_store(tmp_path / "store"), tmp_path / "out"
    export(store, output, "speculators")
    for number in (4, 5):
        write_capture(store / RUN.run_id, number, f"r{number}", streams(3, number))
    with pytest.raises(StoppedError):
        export(store, output, "speculators", told=stop_at(5))
    assert (output / "state.json").is_file()
    assert len(rows(output)) == 4
