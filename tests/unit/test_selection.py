"""What makes a training set: captures of one model with one set of weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_files import RUN, norm_weight, states, write_capture, write_run
from hs_capture import ConfigError, HiddenStatesDataset, open_store
from hs_capture.samples import Sample
from hs_capture.selection import select
from unit.export.stores import write_samples


def store_of(tmp_path: Path, *captures: dict[str, object]) -> Path:
    """A store with one capture for each set of facts; their rids are r0, r1, ..."""
    run = write_run(tmp_path, RUN)
    for number, facts in enumerate(captures):
        streams = {f"layer.{layer}": states(3, seed=number) for layer in RUN.layer_ids}
        streams["final.pre_norm"] = states(3, seed=number)
        write_capture(run, number, f"r{number}", streams, **facts)
    return tmp_path


def test_captures_with_an_adapter_are_left_out_and_counted(tmp_path: Path) -> None:
    chosen = select(open_store(store_of(tmp_path, {}, {"lora": "tuned"}, {})))
    assert chosen.positions == [0, 2]
    assert chosen.left_out == {"with a LoRA adapter": 1}


def test_weights_are_never_mixed(tmp_path: Path) -> None:
    store = open_store(store_of(tmp_path, {}, {"weights_version": 2}, {"weights_version": 2}))
    with pytest.raises(
        ConfigError, match=r"versions 0, 2; choose one \(weights_version=N, --weights-version N\)"
    ):
        select(store)
    chosen = select(store, weights_version=2)
    assert chosen.positions == [1, 2]
    assert chosen.left_out == {"of other weights": 1}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"config_digest": "other"}, "model: 00112233 and other"),
        ({"dtype": "bfloat16"}, "dtype: float32 and bfloat16"),
        ({"layer_ids": (1, 2)}, "choice of layers"),
        ({"norm": norm_weight([2.0, 2.0, 2.0, 2.0])}, "weights; take each run by itself"),
    ],
)
def test_runs_that_are_not_alike_make_no_dataset(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    """Two servers may have had other layers, or other weights of one model."""
    first = replace(RUN, norm=norm_weight([1.0, 1.0, 1.0, 1.0]))
    for number, info in enumerate((first, replace(first, run_id="run-b", created=2e9, **change))):
        run = write_run(tmp_path, info)
        streams = {f"layer.{layer}": states(3) for layer in info.layer_ids}
        write_capture(run, 0, f"r{number}", streams)
    with pytest.raises(ConfigError, match=what):
        HiddenStatesDataset(tmp_path, final="pre_norm")
    assert len(HiddenStatesDataset(tmp_path, final="pre_norm", rids="r1")) == 1


def test_a_dataset_takes_the_weights_that_are_asked_for(tmp_path: Path) -> None:
    path = store_of(tmp_path, {}, {"weights_version": 1})
    dataset = HiddenStatesDataset(path, final="pre_norm", weights_version=1)
    assert [dataset.capture(index).rid for index in range(len(dataset))] == ["r1"]


def test_samples_without_a_capture_are_counted(tmp_path: Path) -> None:
    """Its file was deleted, or taken away; an incomplete capture is counted as one."""
    path = store_of(tmp_path, {}, {}, {"missing": [(0, 1)], "reason": "aborted"}, {})
    write_samples(path, *(Sample(number, "", f"r{number}", ()) for number in range(4)))
    (path / RUN.run_id / "000000" / "000000001-x.hsc").unlink()
    chosen = select(open_store(path))
    assert chosen.samples is not None
    assert [sample.number for sample in chosen.samples] == [0, 3]
    assert chosen.left_out == {"incomplete (aborted)": 1, "samples without a capture": 1}
    assert HiddenStatesDataset(path, final="pre_norm").left_out == chosen.left_out
    assert select(open_store(path), "r[03]").left_out == {"of other rids": 1}


def test_a_sample_that_was_fetched_again_has_a_capture(tmp_path: Path) -> None:
    """It has a line for the rid of each time, of which the first has no capture any more."""
    path = store_of(tmp_path, {}, {}, {})
    write_samples(path, *(Sample(number % 2, "", f"r{number}", ()) for number in range(3)))
    (path / RUN.run_id / "000000" / "000000000-x.hsc").unlink()
    chosen = select(open_store(path))
    assert chosen.positions == [1, 0]
    assert chosen.left_out == {}
