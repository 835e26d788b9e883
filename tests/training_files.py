"""Is an export what its trainer expects? The files are read without the trainer, and without us.

Each function returns what differs, in words; nothing when every tensor is right, bit for bit. It
reads a file as its trainer would (torch.load, safetensors, an Arrow stream), not with our package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from hs_capture import Capture


@dataclass(frozen=True)
class GivenSample:
    """One sample as it was given to ``hs-capture extract``, and the capture that came of it."""

    input_ids: list[int]
    loss_mask: list[int]
    capture: Capture


def specforge_differences(
    folder: Path, samples: Sequence[GivenSample], layers: Sequence[int]
) -> Iterator[str]:
    """Compare SpecForge's files: three layers side by side, and the final state post-norm."""
    import torch

    yield from _differences_of_ids(folder, layers, layers)
    files = sorted(folder.rglob("*.ckpt"), key=str)
    if len(files) != len(samples):
        yield f"{folder.name}: {len(files)} files of {len(samples)} samples"
    for path, sample in zip(files, samples, strict=False):
        aux = sample.capture.aux_hidden_states(layers=layers)
        expected = {
            "input_ids": torch.tensor(sample.input_ids),
            "loss_mask": torch.tensor(sample.loss_mask),
            "hidden_state": sample.capture.last_hidden_states("post_norm").unsqueeze(0),
            "aux_hidden_state": aux.flatten(1).unsqueeze(0),
        }
        yield from _differences(path.name, torch.load(path, weights_only=True), expected)


def speculators_differences(
    folder: Path, samples: Sequence[GivenSample], layers: Sequence[int]
) -> Iterator[str]:
    """Compare speculators' files: the pre-norm final state behind the layers, masks in a table.

    It counts the inputs of layers, so its ids are one above ours.
    """
    import torch
    from safetensors.torch import load_file

    yield from _differences_of_ids(folder, layers, [layer + 1 for layer in layers])
    rows = _arrow_rows(folder)
    files = list((folder / "hidden_states").glob("*.safetensors"))
    if not len(rows) == len(files) == len(samples):
        yield f"{folder.name}: {len(rows)} rows and {len(files)} files of {len(samples)} samples"
    for number, (row, sample) in enumerate(zip(rows, samples, strict=False)):
        final = sample.capture.last_hidden_states("pre_norm")
        aux = sample.capture.aux_hidden_states(layers=layers)
        ids = torch.tensor(sample.input_ids)
        expected = {
            "hidden_states": torch.cat((aux, final.unsqueeze(1)), dim=1),
            "token_ids": ids,
        }
        path = folder / "hidden_states" / f"hs_{number}.safetensors"
        yield from _differences(path.name, load_file(path), expected)
        mask = torch.tensor(sample.loss_mask)
        expected = {"input_ids": ids, "loss_mask": mask, "seq_len": torch.tensor(len(ids))}
        found = {name: torch.tensor(value) for name, value in row.items()}
        yield from _differences(f"row {number}", found, expected)


def _differences_of_ids(
    folder: Path, layers: Sequence[int], as_the_trainer_counts: Sequence[int]
) -> Iterator[str]:
    told = json.loads((folder / "export.json").read_text())
    for name, expected in (
        ("layer_ids", layers),
        ("trainer_layer_ids", as_the_trainer_counts),
    ):
        if told[name] != list(expected):
            yield f"{folder.name}: {name} is {told[name]}, not {list(expected)}"


def _differences(
    place: str, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> Iterator[str]:
    import torch

    if found.keys() != expected.keys():
        yield f"{place}: holds {sorted(found)}, not {sorted(expected)}"
    for name in found.keys() & expected.keys():
        ours, theirs = expected[name], found[name]
        if (theirs.dtype, theirs.shape) != (ours.dtype, ours.shape):
            yield (
                f"{place}: {name} is {theirs.dtype} {list(theirs.shape)}, "
                f"not {ours.dtype} {list(ours.shape)}"
            )
        elif not torch.equal(theirs, ours):
            yield f"{place}: {name} has other values"


def _arrow_rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow as pa

    state = json.loads((folder / "state.json").read_text())
    rows: list[dict[str, Any]] = []
    for file in state["_data_files"]:
        with (
            pa.OSFile(str(folder / file["filename"])) as source,
            pa.ipc.open_stream(source) as stream,
        ):
            rows += stream.read_all().to_pylist()
    return rows
