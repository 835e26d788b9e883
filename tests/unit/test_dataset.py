"""HiddenStatesDataset gives each complete capture in any process, and opens by the index alone."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hs_capture
from capture_files import RUN, write_capture
from hs_capture import ConfigError, FormatError, HiddenStatesDataset, open_store
from hs_capture.samples import Sample
from unit.export.stores import streams, write_samples, write_store


@pytest.mark.parametrize("final", ["pre_norm", "post_norm"])
def test_an_item_is_what_the_capture_holds(tmp_path: Path, final: Any) -> None:
    store = open_store(write_store(tmp_path, dtype="bfloat16"))
    dataset = HiddenStatesDataset(tmp_path, final=final)
    assert len(dataset) == 4
    assert dataset.lengths.tolist() == [5, 7, 1, 6]
    for number, item in enumerate(dataset[i] for i in range(4)):
        c = store[f"r{number}"]
        assert dataset.id(number) == c.rid
        assert set(item) == {"input_ids", "loss_mask", "aux_hidden_states", "last_hidden_states"}
        assert torch.equal(item["input_ids"], c.input_ids)
        assert torch.equal(item["loss_mask"], torch.ones(c.num_tokens, dtype=torch.int64))
        assert torch.equal(item["aux_hidden_states"], c.aux_hidden_states())
        assert torch.equal(item["last_hidden_states"], c.last_hidden_states(final))
        assert item["last_hidden_states"].dtype == torch.bfloat16


def test_samples_give_masks_names_and_the_order(tmp_path: Path) -> None:
    write_store(tmp_path)
    write_samples(tmp_path, Sample(9, "b", "r1", ((1, 3), (6, 7))), Sample(2, "a", "r0", ()))
    dataset = HiddenStatesDataset(tmp_path, final="pre_norm")
    assert [dataset.id(0), dataset.id(1)] == ["a", "b"]
    assert dataset[0]["loss_mask"].tolist() == [0] * 5
    assert dataset[1]["loss_mask"].tolist() == [0, 1, 1, 0, 0, 0, 1]
    assert dataset.left_out == {"not in samples.jsonl": 2}


def test_generated_tokens_are_in_the_loss_and_their_prompt_is_not(tmp_path: Path) -> None:
    """Of a capture with nothing generated in it all tokens count; a sample's own mask holds."""
    write_store(tmp_path, (3,))
    for number, prompt in ((1, 4), (2, 6)):
        write_capture(tmp_path / RUN.run_id, number, f"r{number}", streams(6), prompt_tokens=prompt)
    dataset = HiddenStatesDataset(tmp_path, final="pre_norm")
    masks = [dataset[i]["loss_mask"].tolist() for i in range(3)]
    assert masks == [[1] * 3, [0, 0, 0, 0, 1, 1], [1] * 6]
    assert [dataset.capture(i).prompt_tokens for i in range(3)] == [3, 4, 6]
    write_samples(tmp_path, Sample(0, "a", "r1", ((0, 2),)))
    (item,) = HiddenStatesDataset(tmp_path, final="pre_norm")
    assert item["loss_mask"].tolist() == [1, 1, 0, 0, 0, 0]


def test_incomplete_captures_are_not_in_it(tmp_path: Path) -> None:
    write_store(tmp_path, (3,))
    write_capture(
        tmp_path / RUN.run_id, 1, "r1", streams(4), missing=[(0, 1)], reason="prefix_cache"
    )
    dataset = HiddenStatesDataset(tmp_path, final="pre_norm")
    assert (len(dataset), dataset.left_out) == (1, {"incomplete (prefix_cache)": 1})


def test_layers_come_as_asked_for(tmp_path: Path) -> None:
    store = open_store(write_store(tmp_path))
    item = HiddenStatesDataset(tmp_path, final="pre_norm", layers=[4, 1])[1]
    assert torch.equal(item["aux_hidden_states"], store["r1"].aux_hidden_states(layers=[4, 1]))


def test_indices_count_from_both_ends(tmp_path: Path) -> None:
    dataset = HiddenStatesDataset(write_store(tmp_path), final="pre_norm")
    assert torch.equal(dataset[-1]["input_ids"], dataset[3]["input_ids"])
    for index in (4, -5):
        with pytest.raises(IndexError, match=f"sample {index} of 4"):
            dataset[index]


def test_a_mask_that_is_longer_than_its_capture_is_damage(tmp_path: Path) -> None:
    write_store(tmp_path)
    write_samples(tmp_path, Sample(0, "a", "r0", ((0, 6),)))
    dataset = HiddenStatesDataset(tmp_path, final="pre_norm")
    with pytest.raises(FormatError, match="selects token 5 of 5"):
        dataset[0]


def test_a_wrong_norm_and_an_empty_choice_are_refused(tmp_path: Path) -> None:
    write_store(tmp_path)
    with pytest.raises(ConfigError, match="final='post': expected 'pre_norm' or 'post_norm'"):
        HiddenStatesDataset(tmp_path, final="post")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no complete capture among 4"):
        HiddenStatesDataset(tmp_path, final="pre_norm", rids="x*")


def test_opening_reads_no_capture_file(tmp_path: Path) -> None:
    """What is not there for a moment cannot be read; only names are looked at."""
    write_store(tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.hsc")}
    for path in kept:
        path.write_bytes(b"")
    dataset = HiddenStatesDataset(tmp_path, final="pre_norm")
    for path, data in kept.items():
        path.write_bytes(data)
    assert len(dataset[3]["input_ids"]) == 6


def test_another_file_in_the_place_of_a_sample_is_noticed(tmp_path: Path) -> None:
    dataset = HiddenStatesDataset(write_store(tmp_path), final="pre_norm")
    store = open_store(tmp_path)
    store["r1"].path.replace(store["r0"].path)
    with pytest.raises(FormatError, match=r"are \('r1', 7, True\), and were \('r0', 5, True\)"):
        dataset[0]


def test_pickled_it_is_the_same_and_small(tmp_path: Path) -> None:
    dataset = HiddenStatesDataset(write_store(tmp_path, (1,) * 100), final="post_norm")
    pickled = pickle.dumps(dataset)
    again = pickle.loads(pickled)
    assert torch.equal(again[7]["last_hidden_states"], dataset[7]["last_hidden_states"])
    assert len(pickled) < 100 * 100 + 4000


LOADERS = """
import sys
import torch
from torch.utils.data import DataLoader
from hs_capture import HiddenStatesDataset

if __name__ == "__main__":
    dataset = HiddenStatesDataset(sys.argv[1], final="post_norm")
    for context in ("fork", "spawn"):
        loader = DataLoader(
            dataset, batch_size=None, shuffle=False, num_workers=2, multiprocessing_context=context
        )
        items = list(loader)
        assert len(items) == len(dataset) == 12
        for number, item in enumerate(items):
            for name, tensor in dataset[number].items():
                assert torch.equal(item[name], tensor), (context, number, name)
    print("same")
"""


def test_loader_workers_read_the_same_forked_and_spawned(tmp_path: Path) -> None:
    write_store(tmp_path / "store", tuple(range(1, 13)))
    script = tmp_path / "loaders.py"
    script.write_text(LOADERS)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.stdout == "same\n", done.stderr


def test_the_name_is_public() -> None:
    assert hs_capture.HiddenStatesDataset is HiddenStatesDataset
    assert "HiddenStatesDataset" in dir(hs_capture)
