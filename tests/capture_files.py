"""Runs and capture files for tests, written through the public format as the writer does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_capture.format.catalog import describe
from hs_capture.format.codec import dtype_of, encode
from hs_capture.format.container import ContainerWriter
from hs_capture.format.index import IndexEntry, append_line
from hs_capture.format.metadata import CaptureMetadata
from hs_capture.format.run import NormWeight, RunInfo

RUN = RunInfo(
    run_id="run-a",
    rank="tp0",
    created=1000.0,
    hs_capture_version="0.1.0",
    sglang_version="0.5.23",
    torch_version="2.14.1",
    server_pid=4242,
    door="pth",
    model_class="DeepseekV2ForCausalLM",
    wrapped=("DeepseekV2ForCausalLM.__init__", "DeepseekV2Model.forward"),
    architecture="DeepseekV2ForCausalLM",
    config_digest="00112233",
    num_layers=8,
    hidden_size=4,
    vocab_size=64,
    dtype="float32",
    layer_ids=(1, 3, 4),
    final=("pre_norm",),
    ranks={"tp": 0, "pp": 0, "dp": 0},
)
METADATA = CaptureMetadata(
    rid="r",
    sequence=0,
    num_tokens=0,
    complete=True,
    incomplete_reason=None,
    missing=(),
    layer_ids=(),
    final=(),
    hidden_size=4,
    dtype="float32",
    run_id="run-a",
    rank="tp0",
    hs_capture_version="0.1.0",
    sglang_version="0.5.23",
    model_class="DeepseekV2ForCausalLM",
    captured_at=1001.0,
)


def write_run(dump: Path, run: RunInfo = RUN) -> Path:
    """A run directory with its run.json."""
    directory = dump / run.run_id
    directory.mkdir(parents=True)
    run.write(directory / "run.json")
    return directory


def states(
    tokens: int, width: int = 4, dtype: str = "float32", seed: int = 0
) -> NDArray[np.generic]:
    """Random states [tokens, width] in the carrier type of `dtype`."""
    values = np.random.default_rng(seed).standard_normal((tokens, width)).astype("<f4")
    if dtype == "bfloat16":
        return (values.view("<u4") >> 16).astype("<u2")
    return values.astype(dtype_of(dtype).carrier)


def write_container(
    path: Path,
    streams: Mapping[str, tuple[str, NDArray[Any]]],
    metadata: Mapping[str, object],
    rows_per_block: int = 3,
    missing: Sequence[tuple[int, int]] = (),
) -> int:
    """A capture file with each stream's rows in small blocks, without the `missing` rows.

    "input_ids" is always whole. Returns the size of the file.
    """
    writer = ContainerWriter(path)
    rows = 0
    for name, (dtype, values) in streams.items():
        rows = len(values)
        writer.declare(name, dtype, values.shape[1] if values.ndim == 2 else None)
        gone = {row for pair in missing for row in range(*pair)} if name != "input_ids" else set()
        start = 0
        while start < rows:
            stop = start
            while stop < min(start + rows_per_block, rows) and stop not in gone:
                stop += 1
            if stop > start:
                writer.add(name, start, stop, encode(values[start:stop], dtype))
            start = max(stop, start + 1)
    return writer.finish(metadata, rows)


def write_capture(
    run: Path,
    sequence: int,
    rid: str,
    streams: Mapping[str, NDArray[Any]],
    *,
    indexed: bool = True,
    missing: Sequence[tuple[int, int]] = (),
    reason: str | None = None,
    ids: Sequence[int] | None = None,
    **more: Any,
) -> IndexEntry:
    """Publish one capture in a run directory, with counted token ids if no `ids` are given."""
    tokens = len(next(iter(streams.values()))) - more.get("rows_behind", 0)
    metadata = replace(
        METADATA,
        rid=rid,
        sequence=sequence,
        num_tokens=tokens,
        complete=not missing,
        incomplete_reason=reason,
        missing=tuple(missing),
        layer_ids=tuple(int(name[6:]) for name in streams if name.startswith("layer.")),
        final=tuple(name[6:] for name in streams if name.startswith("final.")),
        **more,
    )
    folder = run / f"{sequence // 1000:06d}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{sequence:09d}-x.hsc"
    counted = np.arange(tokens, dtype="<i8") + 100 * sequence
    typed = {name: (metadata.dtype, values) for name, values in streams.items()}
    write_container(
        path,
        {"input_ids": ("int64", counted if ids is None else np.asarray(ids, "<i8")), **typed},
        metadata.to_object(),
        missing=missing,
    )
    entry = describe(run, path.relative_to(run).as_posix())
    if indexed:
        with (run / "index-tp0.jsonl").open("ab") as index:
            index.write(append_line(entry))
    return entry


def norm_weight(weight: Sequence[float], eps: float = 1e-6) -> NormWeight:
    """A float32 norm."""
    return NormWeight.of(np.asarray(weight, "<f4"), "float32", eps)
