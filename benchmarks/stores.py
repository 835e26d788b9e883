"""Stores for benchmarks, written through the public format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hs_capture.format.catalog import describe
from hs_capture.format.codec import encode, rows_per_block
from hs_capture.format.container import ContainerWriter
from hs_capture.format.index import IndexEntry, append_line
from hs_capture.format.metadata import CaptureMetadata
from hs_capture.format.run import NormWeight, RunInfo

_PER_FOLDER = 1000


def write_run(folder: Path, width: int, layers: tuple[int, ...]) -> Path:
    """A run directory with its run.json."""
    directory = folder / "run"
    directory.mkdir(parents=True)
    norm = NormWeight.of(np.ones(width, "<f4"), "float32", 1e-6)
    RunInfo(
        run_id="run",
        rank="tp0",
        created=0.0,
        hs_capture_version="0",
        sglang_version="0.5.23",
        torch_version="0",
        server_pid=0,
        door="pth",
        model_class="DeepseekV2ForCausalLM",
        wrapped=(),
        architecture="DeepseekV2ForCausalLM",
        config_digest="0",
        num_layers=61,
        hidden_size=width,
        vocab_size=100_000,
        dtype="bfloat16",
        layer_ids=layers,
        final=("pre_norm",),
        ranks={},
        norm=norm,
    ).write(directory / "run.json")
    return directory


def write_store(
    folder: Path,
    layers: tuple[int, ...],
    contents: Sequence[Sequence[NDArray[np.uint16]]],
    captures: int,
) -> Path:
    """A store of `captures` captures that take the `contents` in turn, the final state last."""
    run = write_run(folder, contents[0][0].shape[1], layers)
    with (run / "index-tp0.jsonl").open("ab") as index:
        for number in range(captures):
            bits = contents[number % len(contents)]
            index.write(append_line(_write_capture(run, number, layers, bits)))
    return folder


def _write_capture(
    run: Path, number: int, layers: tuple[int, ...], bits: Sequence[NDArray[np.uint16]]
) -> IndexEntry:
    tokens, width = bits[0].shape
    path = run / f"{number // _PER_FOLDER:06d}" / f"{number:09d}.hsc"
    path.parent.mkdir(exist_ok=True)
    writer = ContainerWriter(path)
    ids = np.random.default_rng(number).integers(0, 100_000, tokens).astype("<i8")
    writer.declare("input_ids", "int64")
    writer.add("input_ids", 0, tokens, encode(ids, "int64"))
    names = [*(f"layer.{layer}" for layer in layers), "final.pre_norm"]
    for name, values in zip(names, bits, strict=True):
        writer.declare(name, "bfloat16", width)
        step = rows_per_block(2 * width)
        for start in range(0, tokens, step):
            part: NDArray[Any] = values[start : start + step]
            writer.add(name, start, start + len(part), encode(part, "bfloat16"))
    metadata = CaptureMetadata(
        rid=f"sample-{number}",
        sequence=number,
        num_tokens=tokens,
        complete=True,
        incomplete_reason=None,
        missing=(),
        layer_ids=layers,
        final=("pre_norm",),
        hidden_size=width,
        dtype="bfloat16",
        run_id="run",
        rank="tp0",
        hs_capture_version="0",
        sglang_version="0.5.23",
        model_class="DeepseekV2ForCausalLM",
        captured_at=float(number),
        key=number,
    )
    writer.finish(metadata.to_object(), tokens)
    return describe(run, path.relative_to(run).as_posix())
