"""Reading a training set: HiddenStatesDataset beside the files of the trainers, same content.

    python benchmarks/reader.py [--samples 48] [--tokens 1024] [--width 2048] [--rounds 3] [--json]

Captures of random activations (see activations.py) are exported to SpecForge's .ckpt, packed once
more as SpecForge's own .ckpt.gz (gzip level 6), and exported to speculators' safetensors. Each is
read by a torch DataLoader, a sample at a time, with 1 and with 2 workers, page cache warm; a
worker adds up each tensor, or a mapped file would not be read at all. Rounds of all readers are
interleaved; figures are medians. GB/s count the tensors, not the files.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from activations import residual_stream
from figures import machine
from safetensors.torch import load_file
from stores import write_store
from torch.utils.data import DataLoader, Dataset

from hs_capture import HiddenStatesDataset

LAYERS = (1, 29, 57)
GZIP_LEVEL = 6
"""The level of SpecForge's --compress."""


def load_ckpt(path: str) -> dict[str, torch.Tensor]:
    # As SpecForge's load_feature_file does.
    loaded: dict[str, torch.Tensor] = torch.load(path, weights_only=False, mmap=True)
    return loaded


def load_gzipped(path: str) -> dict[str, torch.Tensor]:
    with gzip.open(path, "rb") as file:
        loaded: dict[str, torch.Tensor] = torch.load(io.BytesIO(file.read()), weights_only=False)
    return loaded


class Touched(Dataset[int]):
    """Reads a sample, touches every byte, and returns how many there were."""

    def __init__(self, load: Callable[[Any], Any], keys: list[Any]) -> None:
        self.load = load
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> int:
        total = 0
        for tensor in self.load(self.keys[index]).values():
            tensor.contiguous().view(torch.uint8).numpy().reshape(-1).view("u1").sum()
            total += tensor.nbytes
        return total


def one_thread(_worker: int) -> None:
    torch.set_num_threads(1)


def seconds(dataset: Touched, workers: int) -> tuple[float, int]:
    """How long one pass takes once the workers are there, and how many bytes it brought."""
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=one_thread,
    )
    # The first pass starts the workers and warms the page cache.
    sum(loader)
    start = time.perf_counter()
    total = sum(loader)
    return time.perf_counter() - start, total


def size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern))


def prepare(folder: Path, options: argparse.Namespace) -> dict[str, tuple[Touched, int]]:
    """Every reader by name, with the bytes of its files."""
    bits = [
        [residual_stream(options.tokens, options.width, 4 * n + k) for k in range(4)]
        for n in range(4)
    ]
    store = write_store(folder / "store", LAYERS, bits, options.samples)
    for name in ("specforge", "speculators"):
        command = [sys.executable, "-m", "hs_capture.cli", "export", "--format", name]
        places = ["--store", str(store), "--output", str(folder / name), "--workers", "1"]
        subprocess.run([*command, *places], check=True, stdout=subprocess.DEVNULL)
    plain = sorted(map(str, (folder / "specforge").rglob("*.ckpt")))
    packed = [f"{path}.gz" for path in plain]
    for path, target in zip(plain, packed, strict=True):
        with Path(path).open("rb") as source, gzip.open(target, "wb", GZIP_LEVEL) as file:
            shutil.copyfileobj(source, file)
    tensors = sorted(map(str, (folder / "speculators").rglob("*.safetensors")))
    ours = HiddenStatesDataset(store, final="pre_norm")
    return {
        "hs-capture": (Touched(ours.__getitem__, list(range(len(ours)))), size_of(store, "*.hsc")),
        "specforge .ckpt": (Touched(load_ckpt, plain), size_of(folder / "specforge", "*.ckpt")),
        "specforge .ckpt.gz": (Touched(load_gzipped, packed), size_of(folder, "*.gz")),
        "speculators": (Touched(load_file, tensors), size_of(folder, "*.safetensors")),
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="hs-reader-", dir=options.folder) as temporary:
        readers = prepare(Path(temporary), options)
        passes: dict[tuple[str, int], list[float]] = {}
        content = {}
        for _ in range(options.rounds):
            for workers in (1, 2):
                for name, (dataset, _) in readers.items():
                    took, content[name] = seconds(dataset, workers)
                    passes.setdefault((name, workers), []).append(took)
    return [
        {
            "reader": name,
            "workers": workers,
            "samples_per_s": options.samples / statistics.median(times),
            "spread": [options.samples / max(times), options.samples / min(times)],
            "gb_per_s": content[name] / statistics.median(times) / 1e9,
            "bytes_on_disk": readers[name][1],
        }
        for (name, workers), times in passes.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ran_on = machine("torch", "safetensors", "zstandard", "numpy")
    rows = measure(options)
    if options.json:
        print(json.dumps({"machine": ran_on, "parameters": vars(options), "results": rows}))
        return 0
    print(json.dumps(ran_on))
    print(f"{options.samples} samples of {options.tokens} tokens, 4 x {options.width} bfloat16")
    print(f"{'reader':<20}{'workers':>8}{'samples/s':>26}{'GB/s':>7}{'MB on disk':>12}")
    for row in rows:
        print(
            f"{row['reader']:<20}{row['workers']:>8}{row['samples_per_s']:>10.1f} "
            f"{'({:.1f} to {:.1f})'.format(*row['spread']):>15}"
            f"{row['gb_per_s']:>7.2f}{row['bytes_on_disk'] / 1e6:>12.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
