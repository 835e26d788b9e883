"""ModelOpt's offline speculative-decoding files: a torch file a conversation.

Read by ``OfflineSupervisedDataset`` (nvidia-modelopt 0.47.0) from every ``.pt`` below the folder.
The final state is post-norm unless the file says that it is not.
"""

from __future__ import annotations

import torch

from hs_capture.export.formats import Context, Format, grouped
from hs_capture.export.sample import TrainingSample


def _write(path: str, sample: TrainingSample, context: Context) -> None:
    content = {
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask,
        "hidden_states": sample.final,
        "aux_hidden_states": sample.aux.flatten(1),
        "conversation_id": sample.id,
        "hidden_states_prenorm": context.state == "pre_norm",
    }
    torch.save(content, path)


FORMAT = Format(
    name="modelopt",
    trainer="ModelOpt",
    states=("post_norm", "pre_norm"),
    layers=None,
    inputs=False,
    file_name=lambda number: grouped(number, ".pt"),
    write=_write,
)
