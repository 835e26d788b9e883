"""Time and memory to open a store of many captures and to take samples from it.

    python benchmarks/open_store.py [--sizes 1000 100000 1000000] [--folder DIR] [--json]

Each store is measured in a process of its own that has imported torch already: `open_store`, then
`HiddenStatesDataset`, then 1000 random samples. The files of a store are hard links to a few
captures of 64 tokens, which cost no space; their index names each by itself. So samples are read
by file, and not through the dataset, which would notice that a file is not the one of the index.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from activations import residual_stream
from figures import machine
from stores import write_store

from hs_capture.format.index import append_line, read_index

LAYERS = (1, 29, 57)
# A file system allows no more hard links to one file than some tens of thousands.
LINKS = 10_000
SAMPLES = 1000
PER_FOLDER = 1000
HEAD = (
    "captures",
    "open s",
    "CPU s",
    "open MB",
    "dataset s",
    "CPU s",
    "pickled MB",
    "samples/s",
)


def many(folder: Path, captures: int) -> Path:
    """A store of so many captures."""
    run = folder / "store" / "run"
    bits = [[residual_stream(64, 64, k) for k in range(4)]]
    originals = -(-captures // LINKS)
    write_store(folder / "originals", LAYERS, bits, originals)
    source = folder / "originals" / "run"
    run.mkdir(parents=True)
    (run / "run.json").write_bytes((source / "run.json").read_bytes())
    entries = read_index(source / "index-tp0.jsonl")
    with (run / "index-tp0.jsonl").open("wb") as index:
        for number in range(captures):
            entry = entries[number // LINKS]
            file = f"{number // PER_FOLDER:06d}/{number:09d}.hsc"
            if number % PER_FOLDER == 0:
                (run / file).parent.mkdir()
            os.link(source / str(entry.file), run / file)
            rid = f"request-{number:012d}"
            index.write(
                append_line(replace(entry, sequence=number, file=file, rid=rid, key=number))
            )
    return folder / "store"


def memory() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(path: str) -> dict[str, float]:
    """Measure one store in this process."""
    import pickle

    from hs_capture import HiddenStatesDataset, open_store
    from hs_capture.format.container import ContainerReader

    before = memory()
    start_cpu = time.process_time()
    start = time.perf_counter()
    store = open_store(path)
    opened = time.perf_counter() - start
    opened_cpu = time.process_time() - start_cpu
    after = memory()
    positions = np.random.default_rng(0).integers(0, len(store), SAMPLES).tolist()
    start = time.perf_counter()
    for position in positions:
        with ContainerReader(store.at(position).path) as reader:
            for name in reader.streams:
                reader.read(name)
    sampled = time.perf_counter() - start
    del store
    start_cpu = time.process_time()
    start = time.perf_counter()
    dataset = HiddenStatesDataset(path, final="pre_norm")
    dataset_s = time.perf_counter() - start
    dataset_cpu_s = time.process_time() - start_cpu
    return {
        "captures": len(dataset),
        "open_s": opened,
        "open_cpu_s": opened_cpu,
        "open_mb": (after - before) / 1e6,
        "dataset_s": dataset_s,
        "dataset_cpu_s": dataset_cpu_s,
        "dataset_pickled_mb": len(pickle.dumps(dataset)) / 1e6,
        "samples_per_s": SAMPLES / sampled,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    parser.add_argument(
        "--folder", help="where the stores are made (default: as for all that is temporary)"
    )
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child)))
        return 0
    ran_on = machine("torch", "numpy", "orjson")
    print(json.dumps({"machine": ran_on} if options.json else ran_on), flush=True)
    if not options.json:
        print("".join(f"{name:>12}" for name in HEAD))
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="hs-open-", dir=options.folder) as temporary:
            store = many(Path(temporary), size)
            command = [sys.executable, __file__, "--child", str(store)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        if options.json:
            print(done.stdout, end="", flush=True)
            continue
        captures, *figures = json.loads(done.stdout).values()
        row = f"{captures:>12,}" + "".join(f"{figure:>12,.2f}" for figure in figures)
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
