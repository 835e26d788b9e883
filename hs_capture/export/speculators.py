"""speculators' files: an Arrow data set of token ids and masks, and a safetensors file a row.

Read by ``ArrowDataset`` (speculators 0.9.0). Its file number is the number of the row, so rows
have no holes. The last slot of the layers is the final state before the norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import torch

from hs_capture.export.formats import Context, Format, Row
from hs_capture.export.safetensors_file import save
from hs_capture.export.sample import TrainingSample
from hs_capture.format.atomic import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_BATCH = 256
_DATA_FILE = "data-00000-of-00001.arrow"
_STATE_FILE = "state.json"
"""``load_from_disk`` opens no folder without it."""


def _file_name(number: int) -> str:
    return f"hidden_states/hs_{number}.safetensors"


def _write(path: str, sample: TrainingSample, context: Context) -> None:
    content = {
        "hidden_states": torch.cat((sample.aux, sample.final.unsqueeze(1)), 1),
        "token_ids": sample.input_ids,
    }
    save(path, content, {**context.about, "id": sample.id, "rid": sample.rid})


def _close(output: Path, rows: Iterable[Row]) -> None:
    """Write the folder that ``datasets.load_from_disk`` opens, in its own layout."""
    import pyarrow as pa

    numbers = pa.list_(pa.int64())
    schema = pa.schema([("input_ids", numbers), ("loss_mask", numbers), ("seq_len", pa.int64())])
    temporary = output / f".{_DATA_FILE}.tmp"
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        for batch in _batches(rows):
            stream.write_batch(_record_batch(pa, batch, schema))
    temporary.replace(output / _DATA_FILE)
    # The reader compares a row's ids with a tensor, so rows must come as tensors.
    state = {
        "_data_files": [{"filename": _DATA_FILE}],
        "_fingerprint": "hs-capture",
        "_format_columns": ["input_ids", "loss_mask", "seq_len"],
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    write_atomically(output / "dataset_info.json", b"{}", 0o644)
    write_atomically(output / _STATE_FILE, orjson.dumps(state), 0o644)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS_PER_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _record_batch(pa: Any, batch: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array([row.input_ids() for row in batch], schema.field("input_ids").type),
        pa.array([row.loss_mask() for row in batch], schema.field("loss_mask").type),
        pa.array([row.tokens for row in batch], pa.int64()),
    ]
    return pa.record_batch(columns, schema=schema)


FORMAT = Format(
    name="speculators",
    trainer="speculators 0.9",
    states=("pre_norm",),
    layers=None,
    inputs=True,
    file_name=_file_name,
    write=_write,
    dense=True,
    close=_close,
    closing_file=_STATE_FILE,
    masks_in_files=False,
    requires="pyarrow",
)
