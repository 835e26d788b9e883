"""SpecForge's offline EAGLE-3 files: a torch file a sample, three layers, post-norm final state.

Read by ``OfflineManifestReader`` (SpecForge 0.2.0), which takes every ``.ckpt`` below the folder
in the order of the paths as text, and expects the four keys written here.
"""

from __future__ import annotations

import torch

from hs_capture.export.formats import Context, Format, grouped
from hs_capture.export.sample import TrainingSample


def _write(path: str, sample: TrainingSample, _context: Context) -> None:
    # The leading dimension of the states is one that the readers count on; ids have none.
    content = {
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask,
        "hidden_state": sample.final.unsqueeze(0),
        "aux_hidden_state": sample.aux.flatten(1).unsqueeze(0),
    }
    torch.save(content, path)


FORMAT = Format(
    name="specforge",
    trainer="SpecForge",
    states=("post_norm",),
    layers=3,
    inputs=False,
    file_name=lambda number: grouped(number, ".ckpt"),
    write=_write,
)
