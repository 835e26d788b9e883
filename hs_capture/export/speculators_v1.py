"""The files of speculators 0.4 to 0.7: a torch file a sample, a list of layers, pre-norm last.

Read by ``SampleFileDataset`` (speculators 0.7.0.1, ``--legacy-data``), which takes every file
whose name ends with "pt".
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
import torch

from hs_capture.export.formats import Context, Format, Row
from hs_capture.export.sample import TrainingSample
from hs_capture.format.atomic import write_atomically

LENGTHS_FILE = "sample_lengths.json"
"""Without it the reader takes the lengths from the sizes of the files."""


def _file_name(number: int) -> str:
    return f"data_{number:09d}.pt"


def _write(path: str, sample: TrainingSample, _context: Context) -> None:
    # A view of one layer would take the storage of all layers along into the file.
    layers = [layer.contiguous() for layer in sample.aux.unbind(1)]
    content = {
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask,
        "hidden_states": [*layers, sample.final],
    }
    torch.save(content, path)


def _close(output: Path, rows: Iterable[Row]) -> None:
    """Write the lengths, by the number as the file names spell it."""
    lengths = {f"{row.number:09d}": row.tokens for row in rows}
    write_atomically(output / LENGTHS_FILE, orjson.dumps(lengths), 0o644)


FORMAT = Format(
    name="speculators-v1",
    trainer="speculators 0.4 to 0.7",
    states=("pre_norm",),
    layers=None,
    inputs=True,
    file_name=_file_name,
    write=_write,
    close=_close,
    closing_file=LENGTHS_FILE,
)
