"""From tensors to published files on the CPU: the whole capture pipeline, without SGLang.

    python benchmarks/pipeline.py [--gigabytes 2] [--rounds 7] [--json]

A stand-in for the scheduler hands batches of 64 requests to the real tap; the real ring and the
real writer process do the rest, on tmpfs. Beside it, in the same run: this machine's bounds
(copying to tmpfs files, and the codec alone on as many threads) and what people use instead, on one
thread: torch.save, safetensors, pickled numpy, JSON lists. Rounds alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from activations import residual_stream
from figures import Spread, Target, machine
from safetensors.torch import save_file

from hs_capture.capture.batch import Request, batch_of
from hs_capture.capture.copier import HostCopier
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.tap import Overload, Tap
from hs_capture.format.codec import encode, rows_per_block
from hs_capture.ring.consumer import Consumer
from hs_capture.ring.message import StreamSpec
from hs_capture.ring.producer import Producer
from hs_capture.writer.config import WriterConfig

REQUESTS, TOKENS, WIDTH, STREAMS = 64, 128, 2048, 4
BATCH_BYTES = REQUESTS * TOKENS * WIDTH * 2 * STREAMS
BOOKKEEPING = "caller's thread, without copying"
WITH_COPIES = "caller's thread, copying on the CPU"
JSON_SHARE = 16
"""JSON lists are so slow that one part in this many is written, and the rate is given for that."""


def batch_tensors() -> list[torch.Tensor]:
    """One tensor a stream, bfloat16 [rows, width]."""
    bits = [residual_stream(REQUESTS * TOKENS, WIDTH, seed) for seed in range(STREAMS)]
    return [torch.from_numpy(b.view(np.int16)).view(torch.bfloat16) for b in bits]


def capture(
    tensors: list[torch.Tensor], batches: int, workers: int, root: Path
) -> dict[str, float]:
    """Run `batches` through the pipeline; return GB/s and the time on the caller's thread."""
    producer = Producer(1 << 30)
    streams = tuple(StreamSpec(f"layer.{i}", "bfloat16", WIDTH) for i in range(STREAMS))
    copier = HostCopier(producer)
    config = WriterConfig(
        ring=-1,
        bell=-1,
        run_dir=str(root),
        rank="bench",
        file_mode=0o600,
        reserve_bytes=0,
        workers=workers,
        server_pid=os.getpid(),
        streams=streams,
        splits_planes=copier.splits_planes,
        metadata={},
    )
    launcher = WriterLauncher(producer, config, os.environ)
    tap = Tap(producer, launcher, streams, copier, Overload(True, 60.0), longest_prompt=TOKENS)
    launcher.start()
    ids = np.arange(TOKENS, dtype=np.int64)
    began = time.perf_counter()
    on_thread = []
    for number in range(batches):
        requests = [
            Request(number * REQUESTS + i, f"r{number}-{i}", ids, 0) for i in range(REQUESTS)
        ]
        batch = batch_of((request, 0, TOKENS) for request in requests)
        started = time.perf_counter()
        tap.capture(batch, tensors)
        on_thread.append(time.perf_counter() - started)
    index = root / "index-bench.jsonl"
    while not index.exists() or index.read_bytes().count(b"\n") < batches * REQUESTS:
        time.sleep(0.002)
    seconds = time.perf_counter() - began
    launcher.hang_up()
    copy = sum(on_thread) / batches
    return {"GB_s": batches * BATCH_BYTES / seconds / 1e9, "caller_us": 1e6 * copy}


def bookkeeping_microseconds() -> float:
    """Time on the caller's thread for a batch of 64 requests, less the copying of rows.

    On a GPU the copies are queued and cost the caller nothing that grows with the rows; what
    stays is this, and the end of the requests. Measured with rows of two bytes, in processor time:
    nothing in it waits.
    """
    producer = Producer(1 << 20)
    ring = Consumer(producer.descriptor)
    streams = tuple(StreamSpec(f"layer.{i}", "bfloat16", 1) for i in range(STREAMS))
    tensors = [torch.zeros(REQUESTS * TOKENS, 1, dtype=torch.bfloat16)] * STREAMS

    class Nobody(WriterLauncher):
        def wake(self) -> bool:
            return True

    config = WriterConfig(-1, -1, "", "", 0, 0, 1, 0, streams, False, {})
    overload = Overload(False, 0.0)
    tap = Tap(producer, Nobody(producer, config, {}), streams, HostCopier(producer), overload, 1000)
    ids = np.arange(TOKENS, dtype=np.int64)
    times = []
    for number in range(200):
        keys = range(number * REQUESTS, (number + 1) * REQUESTS)
        requests = [Request(key, f"r{key}", ids, 0) for key in keys]
        batch = batch_of((request, 0, TOKENS) for request in requests)
        started = time.thread_time()
        tap.capture(batch, tensors)
        tap.forget(keys)
        times.append(time.thread_time() - started)
        for entry in ring.entries():
            ring.release(entry)
    return 1e6 * statistics.median(times)


def codec_alone(tensors: list[torch.Tensor], batches: int, workers: int) -> float:
    """GB/s of the codec on `workers` threads, from memory to memory."""
    step = rows_per_block(2 * WIDTH)
    arrays = [tensor.view(torch.int16).numpy().view(np.uint16) for tensor in tensors]
    pieces = [a[i : i + step] for a in arrays for i in range(0, len(a), step)] * batches
    with ThreadPoolExecutor(workers) as pool:
        began = time.perf_counter()
        for _ in pool.map(lambda piece: encode(piece, "bfloat16").stored_bytes, pieces):
            pass
        return batches * BATCH_BYTES / (time.perf_counter() - began) / 1e9


def copy_to_tmpfs(tensors: list[torch.Tensor], batches: int, root: Path) -> float:
    """GB/s of writing the bytes as they are to one file a request, on one thread."""
    raw = [tensor.view(torch.int16).numpy().tobytes() for tensor in tensors]
    size = TOKENS * WIDTH * 2
    began = time.perf_counter()
    for number in range(batches):
        for i in range(REQUESTS):
            with (root / f"{number}-{i}").open("wb", buffering=0) as file:
                for data in raw:
                    file.write(memoryview(data)[i * size : (i + 1) * size])
    return batches * BATCH_BYTES / (time.perf_counter() - began) / 1e9


def save_json(states: dict[str, torch.Tensor], path: Path) -> None:
    path.write_bytes(orjson.dumps({name: t.float().tolist() for name, t in states.items()}))


def save_pickle(states: dict[str, torch.Tensor], path: Path) -> None:
    arrays = {name: tensor.view(torch.int16).numpy() for name, tensor in states.items()}
    path.write_bytes(pickle.dumps(arrays, protocol=5))


OTHERS: dict[str, tuple[Callable[[dict[str, torch.Tensor], Path], None], int]] = {
    "torch.save": (torch.save, 1),
    "safetensors": (save_file, 1),
    "pickled numpy": (save_pickle, 1),
    "tolist + orjson": (save_json, JSON_SHARE),
}
"""Ways to write one request that people use, and which part of the load each gets."""


def written(
    write: Callable[[dict[str, torch.Tensor], Path], None],
    tensors: list[torch.Tensor],
    requests: int,
    root: Path,
) -> float:
    """GB/s of `write` on one thread."""
    began = time.perf_counter()
    for number in range(requests):
        i = number % REQUESTS
        rows = slice(i * TOKENS, (i + 1) * TOKENS)
        states = {f"layer.{k}": tensor[rows].clone() for k, tensor in enumerate(tensors)}
        write(states, root / str(number))
    seconds = time.perf_counter() - began
    return requests * BATCH_BYTES / REQUESTS / seconds / 1e9


def one_round(tensors: list[torch.Tensor], batches: int) -> dict[str, float]:
    """Measure everything once."""
    found: dict[str, float] = {BOOKKEEPING: bookkeeping_microseconds()}

    def in_folder(measure: Callable[[Path], Any]) -> Any:
        root = Path(tempfile.mkdtemp(prefix="hs-bench-", dir="/dev/shm"))
        try:
            return measure(root)
        finally:
            shutil.rmtree(root)

    for workers in (1, 2):
        pipeline = in_folder(lambda root, n=workers: capture(tensors, batches, n, root))
        found[f"pipeline, {workers} workers"] = pipeline["GB_s"]
        alone = codec_alone(tensors, batches, workers)
        found[f"codec alone, {workers} threads"] = alone
        found[f"pipeline / codec alone, {workers} workers"] = pipeline["GB_s"] / alone
        found[WITH_COPIES] = pipeline["caller_us"]
    found["copy to tmpfs files"] = in_folder(lambda root: copy_to_tmpfs(tensors, batches, root))
    for name, (write, share) in OTHERS.items():
        requests = batches * REQUESTS // share
        found[name] = in_folder(lambda root, w=write, n=requests: written(w, tensors, n, root))
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensors = batch_tensors()
    batches = max(1, round(options.gigabytes * 1e9 / BATCH_BYTES))
    rounds = [one_round(tensors, batches) for _ in range(options.rounds + 1)][1:]
    results = {name: Spread.of(r[name] for r in rounds) for name in rounds[0]}
    targets = [
        Target(name, results[name].median, 0.7) for name in results if name.startswith("pipeline /")
    ]
    targets.append(Target(BOOKKEEPING, results[BOOKKEEPING].median, 500.0, at_least=False))
    parameters = {**vars(options), "requests": REQUESTS, "tokens": TOKENS, "width": WIDTH}
    report = {
        "machine": machine("torch", "numpy", "orjson", "safetensors"),
        "parameters": {**parameters, "streams": STREAMS},
        "results": {name: asdict(spread) for name, spread in results.items()},
        "targets": [target.to_object() for target in targets],
    }
    if options.json:
        print(json.dumps(report))
        return 0
    print(json.dumps(report["machine"]), json.dumps(report["parameters"]), sep="\n")
    for name, spread in results.items():
        unit = "us a batch" if name in (BOOKKEEPING, WITH_COPIES) else ""
        unit = unit or ("" if "/" in name else "GB/s")
        print(f"{name:40} {spread!s:36} {unit}")
    print(*targets, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
