"""From tensors to published files on the CPU: the whole capture pipeline, without SGLang.

    python benchmarks/pipeline.py [--gigabytes 1] [--rounds 7] [--workers 1 2] [--json]

A stand-in for the scheduler hands batches of 64 requests to the real tap; the real ring and the
real writer process do the rest, on tmpfs. Beside it, in the same run: this machine's bounds
(copying to tmpfs files, and the codec alone on as many threads) and what people use instead, on one
thread: torch.save, safetensors, pickled numpy, JSON lists. Rounds alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
import torch
import writers
from activations import residual_stream
from figures import Spread, Target, machine
from published import require_whole
from safetensors.torch import save_file
from usage import Usage

from hs_capture.capture.batch import Request, batch_of
from hs_capture.capture.copier import HostCopier
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.sender import Overload
from hs_capture.capture.tap import Tap
from hs_capture.format.codec import encode, rows_per_block
from hs_capture.ring.consumer import Consumer
from hs_capture.ring.message import StreamSpec
from hs_capture.ring.producer import Producer
from hs_capture.writer.config import WriterConfig

REQUESTS, TOKENS, WIDTH, STREAMS = 64, 128, 2048, 4
BATCH_BYTES = REQUESTS * TOKENS * WIDTH * 2 * STREAMS
BOOKKEEPING = "caller's thread, without copying"
WITH_COPIES = "caller's thread, copying"
WRITER = "writer, processor seconds"
YARDSTICK = "the same thread, a fixed piece of Python"
UNITS = {BOOKKEEPING: "us a batch", YARDSTICK: "us", WITH_COPIES: "us a batch", WRITER: "a GB"}
RING_BYTES = 256 * 1024**2
KEPT_FILES = 128
"""Older files are removed while a way of writing runs, by the thread that brings the tensors: a
virtual machine may take a second to get a GB of memory that it has not had before, and this is not
what is compared."""
JSON_SHARE = 16
"""JSON lists are so slow that one part in this many is written, and the rate is given for that."""


def batch_tensors() -> list[torch.Tensor]:
    """One tensor a stream, bfloat16 [rows, width]."""
    bits = [residual_stream(REQUESTS * TOKENS, WIDTH, seed) for seed in range(STREAMS)]
    return [torch.from_numpy(b.view(np.int16)).view(torch.bfloat16) for b in bits]


class Pipeline:
    """A tap, a ring and a writer that stay up for all rounds, as they do in a server."""

    def __init__(self, workers: int, root: Path) -> None:
        """Start a writer with so many workers for the run directory `root`."""
        self._root = root
        self._index = root / "index-bench.jsonl"
        self._indexed_bytes = self._published = self._sent = 0
        self._removed = 0
        streams = tuple(StreamSpec(f"layer.{i}", "bfloat16", WIDTH) for i in range(STREAMS))
        self._tap, self._producer, self._launcher = writers.start(
            root, RING_BYTES, streams, workers, TOKENS
        )

    def run(self, tensors: list[torch.Tensor], batches: int) -> dict[str, float]:
        """Capture `batches`; return GB/s until all are published, microseconds a batch on this
        thread, and the writer's seconds of the processor for a GB."""
        ids = np.arange(TOKENS, dtype=np.int64)
        before = Usage.of(self.writer)
        began = time.perf_counter()
        on_thread = 0.0
        for _ in range(batches):
            keys = range(self._sent, self._sent + REQUESTS)
            requests = [Request(key, f"r{key}", ids, 0) for key in keys]
            batch = batch_of((request, 0, TOKENS) for request in requests)
            started = time.perf_counter()
            self._tap.capture(batch, tensors)
            on_thread += time.perf_counter() - started
            self._sent += REQUESTS
            self._remove_old()
        while self._count_published() < self._sent:
            time.sleep(0.002)
        seconds = time.perf_counter() - began
        require_whole([self._index])
        gigabytes = batches * BATCH_BYTES / 1e9
        after = Usage.of(self.writer)
        writer_seconds = after.user + after.system - before.user - before.system
        return {
            "GB_s": gigabytes / seconds,
            "caller_us": 1e6 * on_thread / batches,
            "writer_s_GB": writer_seconds / gigabytes,
        }

    @property
    def writer(self) -> int:
        """The writer's process id."""
        status = self._root / "status-bench.json"
        while not status.exists():
            time.sleep(0.01)
        pid: int = orjson.loads(status.read_bytes())["writer_pid"]
        return pid

    def counters(self) -> dict[str, int]:
        """What both sides of the ring have counted so far."""
        return self._producer.region.counters()

    def stop(self) -> None:
        """Let the writer end."""
        self._launcher.hang_up()
        unfinished, deadline = self._root / "open", time.monotonic() + 30
        while unfinished.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _count_published(self) -> int:
        if self._index.exists():
            with self._index.open("rb") as index:
                index.seek(self._indexed_bytes)
                new = index.read()
            self._indexed_bytes += len(new)
            self._published += new.count(b"\n")
        return self._published

    def _remove_old(self) -> None:
        """Remove all but the newest captures, as somebody who reads them would."""
        if self._count_published() - self._removed < 2 * KEPT_FILES:
            return
        files = sorted(self._root.glob("[0-9]*/*.hsc"))
        for file in files[:-KEPT_FILES]:
            file.unlink()
        self._removed += len(files) - KEPT_FILES


def fixed_work() -> None:
    """What no change of hs-capture makes faster or slower, of the same kind as bookkeeping."""
    orjson.dumps([StreamSpec(f"layer.{i}", "bfloat16", WIDTH) for i in range(256)])


def bookkeeping() -> dict[str, float]:
    """Microseconds on the caller's thread for a batch of 64 requests, less the copying of rows.

    On a GPU the copies are queued and cost the caller nothing that grows with the rows; what
    stays is this, and the end of the requests. Measured with rows of two bytes, in processor time:
    nothing in it waits. After each batch comes a fixed piece of work, which tells how fast the
    machine was meanwhile.
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
    times, yardstick = [], []
    for number in range(200):
        keys = range(number * REQUESTS, (number + 1) * REQUESTS)
        requests = [Request(key, f"r{key}", ids, 0) for key in keys]
        batch = batch_of((request, 0, TOKENS) for request in requests)
        started = time.thread_time()
        tap.capture(batch, tensors)
        tap.forget(keys)
        ended = time.thread_time()
        fixed_work()
        times.append(ended - started)
        yardstick.append(time.thread_time() - ended)
        for entry in ring.entries():
            ring.release(entry)
    return {
        BOOKKEEPING: 1e6 * statistics.median(times),
        YARDSTICK: 1e6 * statistics.median(yardstick),
    }


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
    for number in range(batches * REQUESTS):
        start = number % REQUESTS * size
        with fresh(root, number).open("wb", buffering=0) as file:
            for data in raw:
                file.write(memoryview(data)[start : start + size])
    return batches * BATCH_BYTES / (time.perf_counter() - began) / 1e9


def fresh(root: Path, number: int) -> Path:
    """Return the path of file `number`, which is not there; older files are removed."""
    path = root / str(number % KEPT_FILES)
    path.unlink(missing_ok=True)
    return path


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
        write(states, fresh(root, number))
    seconds = time.perf_counter() - began
    return requests * BATCH_BYTES / REQUESTS / seconds / 1e9


def one_round(
    tensors: list[torch.Tensor], batches: int, pipelines: dict[int, Pipeline]
) -> dict[str, float]:
    """Measure everything once."""
    found = bookkeeping()
    for workers, pipeline in pipelines.items():
        did = pipeline.run(tensors, batches)
        alone = codec_alone(tensors, batches, workers)
        found[f"pipeline, {workers} workers"] = did["GB_s"]
        found[f"codec alone, {workers} threads"] = alone
        found[f"pipeline / codec alone, {workers} workers"] = did["GB_s"] / alone
        found[f"{WITH_COPIES}, {workers} workers"] = did["caller_us"]
        found[f"{WRITER}, {workers} workers"] = did["writer_s_GB"]
    with folder() as root:
        found["copy to tmpfs files"] = copy_to_tmpfs(tensors, batches, root)
    for name, (write, share) in OTHERS.items():
        with folder() as root:
            found[name] = written(write, tensors, batches * REQUESTS // share, root)
    return found


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on tmpfs that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="hs-bench-", dir="/dev/shm"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def pipelines_of(workers: Iterable[int]) -> Iterator[dict[int, Pipeline]]:
    """A pipeline for each number of `workers`."""
    with ExitStack() as stack:
        running = {}
        for count in workers:
            running[count] = Pipeline(count, stack.enter_context(folder()))
            stack.callback(running[count].stop)
        yield running


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensors = batch_tensors()
    batches = max(1, round(options.gigabytes * 1e9 / BATCH_BYTES))
    with pipelines_of(options.workers) as pipelines:
        rounds = [one_round(tensors, batches, pipelines) for _ in range(options.rounds + 1)][1:]
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
        units = (unit for start, unit in UNITS.items() if name.startswith(start))
        unit = next(units, "" if "/" in name else "GB/s")
        print(f"{name:46} {spread!s:36} {unit}")
    print(*targets, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
