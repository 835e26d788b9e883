"""How fast captures leave the dump directory for a disk.

    python benchmarks/drain.py --output FOLDER [--captures 64] [--rounds 5] [--workers 1 4] [--json]

What `hs-capture drain` does, in one process: copy, check, make durable, publish and remove each
capture of 2,048 tokens (4 tensors of 2,048 bfloat16 values) from tmpfs to FOLDER. Beside it, in the
same run, the least that a durable copy takes: one thread that copies each file and syncs it. Rounds
alternate; figures are medians. GB are of the bytes that are stored.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from activations import residual_stream
from figures import Spread, machine
from stores import write_store

from hs_capture.extract.drain import Drain
from hs_capture.format.catalog import capture_files

TOKENS, WIDTH, STREAMS = 2048, 2048, 4
LAYERS = (1, 12, 23)
COPY = "copy and sync, 1 thread"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="a folder on the disk")
    parser.add_argument("--captures", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways: dict[str, Callable[[Path, Path], None]] = {
        f"drain, {workers} workers": drained_by(workers) for workers in options.workers
    }
    ways[COPY] = copy
    content = [residual_stream(TOKENS, WIDTH, seed) for seed in range(STREAMS)]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with (
        tempfile.TemporaryDirectory(prefix="hs-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.output) as disk,
    ):
        kept = write_store(Path(memory, "kept"), LAYERS, [content], options.captures)
        size = sum((kept / "run" / file).stat().st_size for file in capture_files(kept / "run"))
        for number in range(-1, options.rounds):
            for name, way in ways.items():
                source, target = Path(memory, "source"), Path(disk, "target")
                shutil.copytree(kept, source)
                figures = timed(way, source, target, size)
                # The first round warms up.
                if number >= 0:
                    found[name].append(figures)
                shutil.rmtree(source)
                shutil.rmtree(target)
    report = {
        "machine": machine("orjson", "zstandard"),
        "parameters": {"captures": options.captures, "gigabytes": size / 1e9},
        "GB_s": {name: asdict(Spread.of(f[0] for f in each)) for name, each in found.items()},
        "cpu_s_GB": {name: statistics.median(f[1] for f in each) for name, each in found.items()},
    }
    if options.json:
        print(json.dumps(report))
        return 0
    print(json.dumps(report["machine"]), json.dumps(report["parameters"]), sep="\n")
    for name, each in found.items():
        cpu = statistics.median(f[1] for f in each)
        print(f"{name:26} {Spread.of(f[0] for f in each)!s:30} GB/s, {cpu:.2f} s of a core a GB")
    return 0


def drained_by(workers: int) -> Callable[[Path, Path], None]:
    """The drain with so many workers."""

    def way(source: Path, target: Path) -> None:
        drain = Drain(source, target, workers)
        drain.drain()
        assert not drain.moved.damaged

    return way


def copy(source: Path, target: Path) -> None:
    """Copy every capture and sync it, and nothing else."""
    target.mkdir()
    for number, file in enumerate(capture_files(source / "run")):
        path = target / str(number)
        shutil.copyfile(source / "run" / file, path)
        with path.open("rb") as copied:
            os.fsync(copied.fileno())


def timed(
    way: Callable[[Path, Path], None], source: Path, target: Path, size: int
) -> tuple[float, float]:
    """Return GB/s of `way`, and its seconds of the processor for a GB."""
    os.sync()
    processor, began = time.process_time(), time.perf_counter()
    way(source, target)
    seconds = time.perf_counter() - began
    return size / seconds / 1e9, (time.process_time() - processor) / size * 1e9


if __name__ == "__main__":
    sys.exit(main())
