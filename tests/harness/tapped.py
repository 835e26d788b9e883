"""A server with the tap of the tests beside ours, for states that no reference can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.captures import wait_for
from harness.client import generate
from harness.server import Server


@dataclass(frozen=True)
class Tapped:
    """A server, and the folder in which an independent tap records every forward."""

    server: Server
    folder: Path
    dtype: torch.dtype
    dump_dir: Path

    def forwards(self) -> set[Path]:
        """Return the files of all forwards so far."""
        return set(self.folder.glob("*.pt"))


def assert_same_bits(
    tapped: Tapped, tokens: Sequence[int], rid: str, layer_ids: Sequence[int]
) -> None:
    """Send a prompt; every stored layer and both final states are what was at the tap."""
    before = tapped.forwards()
    generate(tapped.server.url, tokens, rid, max_new_tokens=3)
    capture = wait_for(tapped.dump_dir, [rid])[rid]
    assert capture.complete
    assert capture.dtype == tapped.dtype
    assert capture.layer_ids == list(layer_ids)
    seen = _rows_of(sorted(tapped.forwards() - before), len(tokens))
    assert seen["input_ids"].tolist() == list(tokens)
    aux = capture.aux_hidden_states()
    found = {f"layer.{layer_id}": aux[:, column] for column, layer_id in enumerate(layer_ids)}
    found["final.pre_norm"] = capture.last_hidden_states("pre_norm")
    found["final.post_norm"] = capture.last_hidden_states("post_norm")
    for name, states in found.items():
        assert states.dtype == seen[name].dtype == tapped.dtype
        assert states.view(torch.int16).equal(seen[name].view(torch.int16)), name


def _rows_of(forwards: list[Path], length: int) -> dict[str, torch.Tensor]:
    """Join the rows of the prompt from the forwards of one request; generated tokens follow it."""
    records = [torch.load(path) for path in forwards]
    joined = {name: torch.cat([record[name] for record in records]) for name in records[0]}
    prompt_rows = joined["positions"] < length
    assert joined["positions"][prompt_rows].tolist() == list(range(length))
    return {name: rows[prompt_rows] for name, rows in joined.items()}
