"""What makes a training set: captures of one model with one set of weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_files import RUN, norm_weight, states, write_capture, write_run
from hs_capture import ConfigError, HiddenStatesDataset, open_store
from hs_capture.selection import select


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
