"""Faults in captures, planted by writing them anew in the package's own format."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from capture_files import write_container
from hs_capture import open_store
from hs_capture.format.container import ContainerReader

Streams = dict[str, Any]
Fault = Callable[[Streams, Streams], Streams]
"""From the streams of a capture, and of another one, to those of a wrong one."""


def planted(dump_dir: Path, copy: Path, fault: Fault, rids: list[str]) -> Path:
    """Return a copy of a dump directory in which captures have a fault, and no others are left.

    Each has its neighbour in `rids` as the other one. All are complete, with `layer.*` streams
    dropped where the fault drops them.
    """
    shutil.copytree(dump_dir, copy)
    store = open_store(copy)
    read = {capture.rid: _read(capture.path) for capture in store}
    for capture in store:
        if capture.rid not in rids:
            capture.path.unlink()
            continue
        types, streams, metadata = read[capture.rid]
        other = read[rids[rids.index(capture.rid) - 1]][1]
        made = fault(dict(streams), other)
        named = {name: (types.get(name, types["final.pre_norm"]), v) for name, v in made.items()}
        metadata["layer_ids"] = [int(n[6:]) for n in made if n.startswith("layer.")]
        metadata["final"] = [n[6:] for n in made if n.startswith("final.")]
        capture.path.unlink()
        write_container(capture.path, named, metadata)
    return copy


def sound(streams: Streams, other: Streams) -> Streams:
    """No fault."""
    return streams


def only_pre_norm(streams: Streams, other: Streams) -> Streams:
    """No fault, and no post-norm states."""
    return {name: v for name, v in streams.items() if name != "final.post_norm"}


def one_layer_early(streams: Streams, other: Streams) -> Streams:
    """The output of the last layer but one, which is layer 6, as the final state."""
    early = streams.pop("layer.6")
    return {**only_pre_norm(streams, other), "final.pre_norm": early}


def norm_forgotten(streams: Streams, other: Streams) -> Streams:
    """Pre-norm states stored as post-norm ones."""
    pre_norm = streams.pop("final.pre_norm")
    return {**streams, "final.post_norm": pre_norm}


def normed_already(streams: Streams, other: Streams) -> Streams:
    """Post-norm states stored as pre-norm ones."""
    post_norm = streams.pop("final.post_norm")
    return {**streams, "final.pre_norm": post_norm}


def shifted(streams: Streams, other: Streams) -> Streams:
    """Each row is that of the token before."""
    rows = np.roll(streams["final.pre_norm"], 1, axis=0)
    return {**only_pre_norm(streams, other), "final.pre_norm": rows}


def of_another_request(streams: Streams, other: Streams) -> Streams:
    """The final states of another request, as long as this one."""
    return {**only_pre_norm(streams, other), "final.pre_norm": other["final.pre_norm"]}


def two_rows_swapped(streams: Streams, other: Streams) -> Streams:
    """Of all rows two have changed places."""
    rows = streams["final.pre_norm"].copy()
    rows[[3, 4]] = rows[[4, 3]]
    return {**only_pre_norm(streams, other), "final.pre_norm": rows}


PLAIN = (one_layer_early, norm_forgotten, shifted, of_another_request)
"""Faults that are far larger than any rounding."""


def _read(path: Path) -> tuple[dict[str, str], Streams, dict[str, Any]]:
    with ContainerReader(path) as reader:
        types = {name: stream.dtype for name, stream in reader.streams.items()}
        return types, {name: reader.read(name) for name in types}, dict(reader.metadata)
