"""What each format's files hold: every tensor, its shape, norm, layout, and where ids are said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from capture_files import RUN, write_capture
from hs_capture import Capture, ConfigError, open_store
from hs_capture.export.formats import NAMES, Row, format_named
from hs_capture.export.plan import Wish, make_plan
from hs_capture.export.run import run
from hs_capture.samples import Sample
from unit.export.stores import streams, write_samples, write_store

MASKS = {"r0": [0, 1, 1, 0, 1], "r1": [0] * 7, "r2": [1], "r3": [0, 0, 0, 0, 1, 1]}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = write_store(tmp_path / "store", dtype="bfloat16")
    write_samples(
        folder,
        Sample(3, "d", "r0", ((1, 3), (4, 5))),
        Sample(1, "b", "r1", ()),
        Sample(2, "c", "r2", ((0, 1),)),
        Sample(0, "a", "r3", ((4, 6),)),
    )
    return folder


def export(store: Path, name: str, output: Path, **wish: Any) -> list[Capture]:
    """Export, and return the captures in the order of their samples."""
    opened = open_store(store)
    outcome = run(make_plan(opened, format_named(name), Wish(**wish)), output, workers=1)
    assert (outcome.written, outcome.failed) == (4, [])
    return [opened[rid] for rid in ("r3", "r1", "r2", "r0")]


def same(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit agree."""
    return tensor.dtype == expected.dtype and torch.equal(tensor, expected)


def files(output: Path, suffix: str) -> list[Path]:
    """The files a trainer finds, in the order of their paths as text."""
    return sorted(output.rglob(f"*{suffix}"))


def test_specforge_files_hold_post_norm_states_with_a_batch_dimension(
    store: Path, tmp_path: Path
) -> None:
    captures = export(store, "specforge", tmp_path / "out")
    found = files(tmp_path / "out", ".ckpt")
    assert [str(path.relative_to(tmp_path / "out")) for path in found] == [
        f"rows_000000000-000002000/data_00000000{number}.ckpt" for number in range(4)
    ]
    for path, c in zip(found, captures, strict=True):
        data = torch.load(path, weights_only=True)
        assert set(data) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
        assert same(data["input_ids"], c.input_ids)
        assert same(data["loss_mask"], torch.tensor(MASKS[c.rid]))
        assert same(data["hidden_state"], c.last_hidden_states("post_norm")[None])
        assert same(data["aux_hidden_state"], c.aux_hidden_states().flatten(1)[None])


def test_speculators_rows_and_files_agree_and_end_with_the_pre_norm_state(
    store: Path, tmp_path: Path
) -> None:
    captures = export(store, "speculators", tmp_path / "out")
    table = pa.ipc.open_stream(tmp_path / "out" / "data-00000-of-00001.arrow").read_all()
    rows = table.to_pylist()
    assert len(rows) == 4
    for number, (row, c) in enumerate(zip(rows, captures, strict=True)):
        path = tmp_path / "out" / "hidden_states" / f"hs_{number}.safetensors"
        data = load_file(path)
        expected = torch.cat(
            (c.aux_hidden_states(), c.last_hidden_states("pre_norm").unsqueeze(1)), 1
        )
        assert same(data["hidden_states"], expected)
        assert same(data["token_ids"], c.input_ids)
        assert row == {
            "input_ids": c.input_ids.tolist(),
            "loss_mask": MASKS[c.rid],
            "seq_len": c.num_tokens,
        }
        with safe_open(path, "pt") as file:
            said = file.metadata()
        assert (said["trainer_layer_ids"], said["rid"]) == ("2,4,5", c.rid)
    assert json.loads((tmp_path / "out" / "state.json").read_text())["_format_type"] == "torch"


def test_speculators_v1_files_hold_a_list_of_layers_with_the_pre_norm_state_last(
    store: Path, tmp_path: Path
) -> None:
    captures = export(store, "speculators-v1", tmp_path / "out")
    lengths = json.loads((tmp_path / "out" / "sample_lengths.json").read_text())
    found = [path for path in files(tmp_path / "out", "") if path.name.endswith("pt")]
    assert len(found) == 4
    for path, c in zip(found, captures, strict=True):
        data = torch.load(path, weights_only=True)
        assert same(data["input_ids"], c.input_ids)
        assert same(data["loss_mask"], torch.tensor(MASKS[c.rid]))
        assert isinstance(data["hidden_states"], list)
        expected = [*c.aux_hidden_states().unbind(1), c.last_hidden_states("pre_norm")]
        assert len(data["hidden_states"]) == len(expected) == 4
        assert all(map(same, data["hidden_states"], expected))
        assert lengths[path.stem.split("_")[-1]] == c.num_tokens


@pytest.mark.parametrize(("state", "flag"), [("post_norm", False), ("pre_norm", True)])
def test_modelopt_files_say_their_norm(store: Path, tmp_path: Path, state: Any, flag: bool) -> None:
    captures = export(store, "modelopt", tmp_path / "out", state=state)
    for path, c, name in zip(files(tmp_path / "out", ".pt"), captures, "abcd", strict=True):
        data = torch.load(path, weights_only=True)
        assert same(data["input_ids"], c.input_ids)
        assert same(data["loss_mask"], torch.tensor(MASKS[c.rid]))
        assert same(data["hidden_states"], c.last_hidden_states(state))
        assert same(data["aux_hidden_states"], c.aux_hidden_states().flatten(1))
        assert data["hidden_states_prenorm"] is flag
        assert data["conversation_id"] == name


def test_plain_files_name_each_tensor_and_the_conventions(store: Path, tmp_path: Path) -> None:
    captures = export(store, "safetensors", tmp_path / "out", layers=(1, 4))
    for path, c in zip(files(tmp_path / "out", ".safetensors"), captures, strict=True):
        data = load_file(path)
        assert set(data) == {"input_ids", "loss_mask", "layer.1", "layer.4", "final.pre_norm"}
        assert same(data["input_ids"], c.input_ids)
        assert same(data["loss_mask"], torch.tensor(MASKS[c.rid]))
        assert same(data["layer.4"], c.aux_hidden_states(layers=[4])[:, 0])
        assert same(data["final.pre_norm"], c.last_hidden_states("pre_norm"))
        with safe_open(path, "pt") as file:
            said = file.metadata()
        assert said["layer_ids"] == "1,4"
        assert said["layer_convention"].startswith("layer L is the output of decoder layer L")
        assert said["final_state"] == "pre_norm"


@pytest.mark.parametrize(
    ("name", "ids", "state"),
    [
        ("specforge", [1, 3, 4], "post_norm"),
        ("speculators", [2, 4, 5], "pre_norm"),
        ("speculators-v1", [2, 4, 5], "pre_norm"),
        ("modelopt", [1, 3, 4], "post_norm"),
        ("safetensors", [1, 3, 4], "pre_norm"),
    ],
)
def test_the_sidecar_says_layers_norm_and_conventions(
    store: Path, tmp_path: Path, name: str, ids: list[int], state: str
) -> None:
    export(store, name, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "export.json").read_text())
    assert said["layer_ids"] == [1, 3, 4]
    assert said["trainer_layer_ids"] == ids
    assert ("input" in said["trainer_layer_convention"]) == (ids[0] == 2)
    assert said["final_state"] == state
    derived = state == "post_norm"
    assert said["final_state_origin"].startswith("derived" if derived else "as captured")
    assert said["samples"] == 4


@pytest.mark.parametrize("name", NAMES)
def test_without_samples_every_token_is_trained_on_in_publish_order(
    tmp_path: Path, name: str
) -> None:
    store = open_store(write_store(tmp_path / "store", (3, 2)))
    plan = make_plan(store, format_named(name), Wish())
    assert [(job.number, job.capture.rid) for job in plan.jobs] == [(0, "r0"), (1, "r1")]
    run(plan, tmp_path / "out", workers=1)
    said = json.loads((tmp_path / "out" / "export.json").read_text())
    assert said["loss_mask"].startswith("all ones")
    first = plan.format.file_name(0)
    if first.endswith("pt"):
        data = torch.load(tmp_path / "out" / first, weights_only=True)
        assert data["loss_mask"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_without_samples_the_answers_are_trained_on_where_they_were_captured(
    tmp_path: Path, name: str
) -> None:
    """In the files, in the rows of a data set beside them, and said in export.json."""
    folder = write_store(tmp_path / "store", ())
    write_capture(folder / RUN.run_id, 0, "r0", streams(5), prompt_tokens=2)
    plan = make_plan(open_store(folder), format_named(name), Wish())
    run(plan, tmp_path / "out", workers=1)
    said = json.loads((tmp_path / "out" / "export.json").read_text())
    assert said["loss_mask"].startswith("ones for generated tokens")
    (job,) = plan.jobs
    assert Row(0, job.capture, None).loss_mask().tolist() == [0, 0, 1, 1, 1]
    first = plan.format.file_name(0)
    if first.endswith("pt"):
        data = torch.load(tmp_path / "out" / first, weights_only=True)
        assert data["loss_mask"].tolist() == [0, 0, 1, 1, 1]


def test_a_format_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"--format eagle: .*choose specforge, speculators,"):
        format_named("eagle")
