"""Unmodified trainers load exports of real captures, and every tensor in their batches is ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trainers.conftest import Real

Read = Callable[..., Any]


def padded(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """``tensor`` with rows of zeros behind it."""
    rows = torch.zeros(length - len(tensor), *tensor.shape[1:], dtype=tensor.dtype)
    return torch.cat((tensor, rows))


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and every value agree."""
    return found.dtype == expected.dtype and torch.equal(found, expected)


def test_specforge_reads_them(real: Real, read: Read) -> None:
    batches = read("read_specforge.py", "specforge")
    rows = [
        {name: tensor[row] for name, tensor in batch.items()}
        for batch in batches
        for row in range(len(batch["input_ids"]))
    ]
    for row, c, mask in zip(rows, real.captures, real.masks, strict=True):
        length = len(row["input_ids"])
        # SpecForge itself takes the last token out of the loss.
        expected = mask.clone()
        expected[-1] = 0
        assert same(row["input_ids"], padded(c.input_ids, length))
        assert same(row["loss_mask"].reshape(-1), padded(expected, length))
        assert same(row["hidden_state"], padded(c.aux_hidden_states().flatten(1), length))
        assert same(row["target"], padded(c.last_hidden_states("post_norm"), length))


@pytest.mark.parametrize("trainer", ["speculators", "speculators-v1"])
def test_speculators_reads_them(real: Real, read: Read, trainer: str) -> None:
    found = read(f"read_{trainer.replace('-', '_')}.py", trainer)
    assert [int(length) for length in found["lengths"]] == [c.num_tokens for c in real.captures]
    for batch, c, mask in zip(found["batches"], real.captures, real.masks, strict=True):
        length = batch["input_ids"].shape[1]
        assert same(batch["input_ids"][0], padded(c.input_ids, length))
        assert torch.equal(batch["loss_mask"][0].long(), padded(mask, length))
        assert same(batch["hidden_states"][0], padded(c.aux_hidden_states().flatten(1), length))
        final = padded(c.last_hidden_states("pre_norm"), length)
        assert same(batch["verifier_last_hidden_states"][0], final)


def test_modelopt_reads_them(real: Real, read: Read) -> None:
    rows = []
    for batch in read("read_modelopt.py", "modelopt"):
        states = batch["base_model_outputs"]
        assert states["base_hidden_prenorm"] is False
        for row in range(len(batch["input_ids"])):
            tensors = (batch["input_ids"], batch["loss_mask"], *map(states.get, STATES))
            rows.append([tensor[row] for tensor in tensors])
    for row, c, mask in zip(rows, real.captures, real.masks, strict=True):
        expected = (
            *(c.input_ids, mask, c.last_hidden_states("post_norm")),
            c.aux_hidden_states().flatten(1),
        )
        for found, ours in zip(row, expected, strict=True):
            assert same(found, padded(ours, len(found)))


STATES = ("base_model_hidden_states", "aux_hidden_states")


def test_the_targets_are_what_sglang_generated(
    real: Real, model: Path, exported: Callable[[str], Path]
) -> None:
    """From the final state, as each family of trainers uses it, comes the token of the engine."""
    weights = {}
    for file in model.glob("*.safetensors"):
        weights |= load_file(file)
    head, norm = weights["lm_head.weight"], weights["model.norm.weight"]
    post = sorted(exported("specforge").rglob("*.ckpt"))
    for number, token in enumerate(real.generated):
        final = torch.load(post[number], weights_only=True)["hidden_state"][0, -1]
        assert int((head @ final).argmax()) == token
        name = f"hidden_states/hs_{number}.safetensors"
        final = load_file(exported("speculators") / name)["hidden_states"][-1, -1]
        normed = norm * final * torch.rsqrt(final.square().mean() + 1e-6)
        assert int((head @ normed).argmax()) == token


def test_a_drafter_of_speculators_learns_from_them(read: Read, model: Path) -> None:
    losses = read("train_speculators.py", "speculators", model)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.8 * losses[0]


def test_a_drafter_of_specforge_learns_from_them(read: Read, model: Path) -> None:
    found = read("train_specforge.py", "specforge", model)
    losses, least = found["losses"], found["least"]
    assert all(map(math.isfinite, losses))
    # SpecForge's loss is a cross-entropy: no drafter gets below the entropy of the target.
    assert 0 < losses[-1] - least < 0.8 * (losses[0] - least)
