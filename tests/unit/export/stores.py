"""A store of a few captures with every kind of thing in it, for the tests of exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from capture_files import RUN, norm_weight, states, write_capture, write_run
from hs_capture.format.run import NormWeight, RunInfo
from hs_capture.samples import Sample, append_line

NORM = norm_weight([0.5, 1.0, 1.5, 2.0])
LAYERS = (1, 3, 4)


def streams(
    tokens: int,
    seed: int = 0,
    layers: tuple[int, ...] = LAYERS,
    final: tuple[str, ...] = ("pre_norm",),
    dtype: str = "float32",
) -> dict[str, Any]:
    """The streams of a capture of random states."""
    names = [f"layer.{layer}" for layer in layers] + [f"final.{state}" for state in final]
    return {
        name: states(tokens, dtype=dtype, seed=10 * seed + place)
        for place, name in enumerate(names)
    }


def write_store(
    folder: Path,
    lengths: tuple[int, ...] = (5, 7, 1, 6),
    *,
    norm: NormWeight | None = NORM,
    layers: tuple[int, ...] = LAYERS,
    final: tuple[str, ...] = ("pre_norm",),
    dtype: str = "float32",
    **run: Any,
) -> Path:
    """A run with one capture a length; their rids are r0, r1 and so on."""
    info: RunInfo = replace(RUN, norm=norm, layer_ids=layers, final=final, dtype=dtype, **run)
    directory = write_run(folder, info)
    for number, length in enumerate(lengths):
        content = streams(length, number, layers, final, dtype)
        write_capture(directory, number, f"r{number}", content, dtype=dtype)
    return folder


def write_samples(folder: Path, *samples: Sample) -> None:
    """samples.jsonl in a store."""
    (folder / "samples.jsonl").write_bytes(b"".join(append_line(sample) for sample in samples))
