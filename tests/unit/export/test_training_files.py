"""The checks of `make demo` on exports: nothing to say of a right one, and each fault is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hs_capture import open_store
from hs_capture.cli import main
from hs_capture.samples import Sample
from training_files import GivenSample, specforge_differences, speculators_differences
from unit.export.stores import LAYERS, write_samples, write_store

Differences = Callable[[Path, Sequence[GivenSample], Sequence[int]], Iterator[str]]
COMPARE: dict[str, Differences] = {
    "specforge": specforge_differences,
    "speculators": speculators_differences,
}
FIRST = {
    "specforge": "rows_000000000-000002000/data_000000000.ckpt",
    "speculators": "hidden_states/hs_0.safetensors",
}


@pytest.fixture
def samples(tmp_path: Path) -> list[GivenSample]:
    """Two samples of 5 and 7 tokens; the sample that comes first was captured last."""
    store = write_store(tmp_path / "store", (7, 5))
    write_samples(store, Sample(1, "b", "r0", ((2, 7),)), Sample(0, "a", "r1", ((0, 1), (3, 5))))
    captures = open_store(store)
    return [
        GivenSample(list(range(100, 105)), [1, 0, 0, 1, 1], captures["r1"]),
        GivenSample(list(range(7)), [0, 0, 1, 1, 1, 1, 1], captures["r0"]),
    ]


def export(folder: Path, name: str) -> Path:
    """Export the store with the command."""
    places = ["--store", str(folder / "store"), "--output", str(folder / name)]
    assert main(["export", *places, "--format", name, "--workers", "1"]) == 0
    return folder / name


@pytest.mark.parametrize("name", COMPARE)
def test_a_right_export_differs_in_nothing(
    tmp_path: Path, samples: list[GivenSample], name: str
) -> None:
    assert list(COMPARE[name](export(tmp_path, name), samples, LAYERS)) == []


def test_a_state_of_the_other_norm_is_named(tmp_path: Path, samples: list[GivenSample]) -> None:
    ours = samples[0].capture
    path = export(tmp_path, "specforge") / FIRST["specforge"]
    pre_norm = ours.last_hidden_states("pre_norm").unsqueeze(0)
    torch.save(torch.load(path, weights_only=True) | {"hidden_state": pre_norm}, path)
    found = list(specforge_differences(tmp_path / "specforge", samples, LAYERS))
    assert found == ["data_000000000.ckpt: hidden_state has other values"]

    path = export(tmp_path, "speculators") / FIRST["speculators"]
    content = load_file(path)
    content["hidden_states"][:, -1] = ours.last_hidden_states("post_norm")
    save_file(content, path)
    found = list(speculators_differences(tmp_path / "speculators", samples, LAYERS))
    assert found == ["hs_0.safetensors: hidden_states has other values"]


@pytest.mark.parametrize("name", COMPARE)
def test_another_mask_is_named(tmp_path: Path, samples: list[GivenSample], name: str) -> None:
    folder = export(tmp_path, name)
    samples[1].loss_mask[0] = 1
    place = {"specforge": "data_000000001.ckpt", "speculators": "row 1"}[name]
    found = list(COMPARE[name](folder, samples, LAYERS))
    assert found == [f"{place}: loss_mask has other values"]


@pytest.mark.parametrize("name", COMPARE)
def test_samples_in_another_order_are_named(
    tmp_path: Path, samples: list[GivenSample], name: str
) -> None:
    found = list(COMPARE[name](export(tmp_path, name), samples[::-1], LAYERS))
    assert any("is torch.int64 [5], not torch.int64 [7]" in said for said in found)


@pytest.mark.parametrize("name", COMPARE)
def test_a_missing_sample_is_named(tmp_path: Path, samples: list[GivenSample], name: str) -> None:
    folder = export(tmp_path, name)
    more = [*samples, samples[0]]
    said = {"specforge": "2 files of 3 samples", "speculators": "2 rows and 2 files of 3 samples"}
    assert list(COMPARE[name](folder, more, LAYERS)) == [f"{name}: {said[name]}"]


@pytest.mark.parametrize("name", COMPARE)
def test_ids_in_the_wrong_convention_are_named(
    tmp_path: Path, samples: list[GivenSample], name: str
) -> None:
    folder = export(tmp_path, name)
    told = json.loads((folder / "export.json").read_text())
    right, wrong = told["trainer_layer_ids"], [7, 8, 9]
    (folder / "export.json").write_text(json.dumps(told | {"trainer_layer_ids": wrong}))
    found = list(COMPARE[name](folder, samples, LAYERS))
    assert found == [f"{name}: trainer_layer_ids is {wrong}, not {right}"]
    assert right == {"specforge": [1, 3, 4], "speculators": [2, 4, 5]}[name]
