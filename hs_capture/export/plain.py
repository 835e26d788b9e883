"""Plain safetensors for a trainer of one's own: each tensor by name, the conventions in each file.

Tensors `input_ids`, `loss_mask` (int64 [T]), `layer.<id>` a layer and `final.<norm>` (the model's
dtype, [T, H]); ids as everywhere in hs-capture.
"""

from __future__ import annotations

from hs_capture.export.formats import Context, Format, grouped
from hs_capture.export.safetensors_file import save
from hs_capture.export.sample import TrainingSample
from hs_capture.format.metadata import layer_stream


def _write(path: str, sample: TrainingSample, context: Context) -> None:
    content = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
    for position, layer in enumerate(context.layer_ids):
        content[layer_stream(layer)] = sample.aux[:, position].contiguous()
    content[f"final.{context.state}"] = sample.final
    save(path, content, {**context.about, "id": sample.id, "rid": sample.rid})


FORMAT = Format(
    name="safetensors",
    trainer="plain safetensors",
    states=("pre_norm", "post_norm"),
    layers=None,
    inputs=False,
    file_name=lambda number: grouped(number, ".safetensors"),
    write=_write,
)
