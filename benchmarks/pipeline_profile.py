"""What the threads of the writer do and wait for while pipeline.py's load runs.

    pip install py-spy
    python benchmarks/pipeline_profile.py [--workers 1 2] [--seconds 8] [--rate 50] [--json]

First the load runs for `--seconds` by itself: its rate, what both sides of the ring and the kernel
count meanwhile, and the rate of the codec alone on as many threads. Then it runs under py-spy,
which stops the writer `--rate` times a second and reads the stacks of all its threads, Python's and
native ones; the rate under it is printed too. And once more, to see who holds Python's lock.

py-spy must be allowed to trace: root, or `kernel.yama.ptrace_scope` 0.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from figures import machine
from pipeline import BATCH_BYTES, Pipeline, batch_tensors, codec_alone, pipelines_of
from usage import Usage

POOL_THREAD = "hs-capture-writer"
ZSTD, PLANES, CHECKSUM = "zstd", "the split into planes", "checksum"
KERNEL, PYTHON = "files: the kernel", "Python"
LOCK = "waits for a lock, Python's or another"
TURN, WORK = "waits for its turn to compress", "waits for work"
"""What a thread of the pool may be found doing: one of these eight."""

_CALLS = {
    "_compress ": ZSTD,
    "_plane ": PLANES,
    "digest_of ": CHECKSUM,
    **dict.fromkeys(("LateFile.", "Publisher.", "create_folder "), KERNEL),
}
"""What a line of these functions calls, when it does not run itself."""

# Waiting is in the C library, which mostly has no names for it; what else is there is named.
_WAITS = re.compile(r"^(0x[0-9a-f]+|\w*(sem_|futex|cond_)\w*) \((libc|libpthread)[.-]")
_PYTHON_FRAME = re.compile(r"\.py:\d+\)$")
_LINE = re.compile(r"\((?:.*/)?([^/]+\.py:\d+)\)$")


@dataclass(frozen=True)
class Stack:
    """One line of py-spy's raw output: the frames of a thread, outermost first, and how often."""

    thread: str
    frames: tuple[str, ...]
    samples: int

    @classmethod
    def parse(cls, line: str) -> Stack:
        stack, _, samples = line.rpartition(" ")
        thread, *frames = stack.split(";")
        return cls(thread, tuple(frames), int(samples))

    @property
    def in_pool(self) -> bool:
        return POOL_THREAD in self.thread

    @property
    def python_line(self) -> str:
        """The innermost line of Python."""
        lines = [frame for frame in self.frames if _PYTHON_FRAME.search(frame)]
        found = _LINE.search(lines[-1]) if lines else None
        return f"{lines[-1].split(' (')[0]} ({found[1]})" if found else "none"

    @property
    def state(self) -> str:
        """What the innermost line of Python is for, unless it runs or waits itself."""
        leaf, line = self.frames[-1], self.python_line
        if _PYTHON_FRAME.search(leaf):
            return PYTHON
        if not _WAITS.search(leaf):
            return next(
                (state for start, state in _CALLS.items() if line.startswith(start)), PYTHON
            )
        if line.startswith("_worker"):
            return WORK
        if line.startswith("Assembler._compressed"):
            return TURN
        return LOCK


def unwatched(pipeline: Pipeline, tensors: list[torch.Tensor], seconds: float) -> dict[str, float]:
    """Run the load for `seconds`; tell the rate and what was counted meanwhile, a GB."""
    before, usage = pipeline.counters(), Usage.of(pipeline.writer)
    began, gigabytes = time.perf_counter(), 0.0
    while time.perf_counter() - began < seconds:
        pipeline.run(tensors, 4)
        gigabytes += 4 * BATCH_BYTES / 1e9
    wall = time.perf_counter() - began
    after, now = pipeline.counters(), Usage.of(pipeline.writer)
    took = {
        name.removesuffix("_microseconds"): (after[name] - before[name]) / 1e6 / wall
        for name in after
        if name.endswith("_microseconds")
    }
    return {
        "GB/s": gigabytes / wall,
        "threads in the codec, mean": took["compress"],
        "threads writing blocks, mean": took["write"],
        "the server's thread, copying into the ring": took["copy"],
        "the server's thread, held up because the ring is full": took["blocked"],
        "the writer's user seconds, a GB": (now.user - usage.user) / gigabytes,
        "the writer's system seconds, a GB": (now.system - usage.system) / gigabytes,
        "page faults, a GB": (now.faults - usage.faults) / gigabytes,
        "times that a thread slept, a GB": (now.sleeps - usage.sleeps) / gigabytes,
    }


def watched(
    pipeline: Pipeline, tensors: list[torch.Tensor], spy: list[str]
) -> tuple[float, list[Stack]]:
    """Run the load under py-spy; return its rate and the stacks."""
    with tempfile.NamedTemporaryFile("r", suffix=".raw") as raw:
        command = [*spy, "--format", "raw", "--output", raw.name, "--pid", str(pipeline.writer)]
        sampling = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        began, gigabytes = time.perf_counter(), 0.0
        while sampling.poll() is None:
            pipeline.run(tensors, 4)
            gigabytes += 4 * BATCH_BYTES / 1e9
        rate = gigabytes / (time.perf_counter() - began)
        if sampling.returncode:
            said, _ = sampling.communicate()
            raise RuntimeError(f"{' '.join(command)}: {said.decode().strip()}")
        return rate, [Stack.parse(line) for line in Path(raw.name).read_text().splitlines()]


def shares(stacks: list[Stack], key: str) -> dict[str, float]:
    """The part of all samples by an attribute of their stacks, the largest first."""
    counted: Counter[str] = Counter()
    for stack in stacks:
        counted[getattr(stack, key)] += stack.samples
    total = counted.total()
    return {name: count / total for name, count in counted.most_common()}


def profile(
    workers: int, tensors: list[torch.Tensor], options: argparse.Namespace
) -> dict[str, Any]:
    """Everything for one number of `workers`."""
    spy = [options.py_spy, "record", "--threads", "--duration", str(options.seconds)]
    stacks_of = [*spy, "--native", "--idle", "--rate", str(options.rate)]
    with pipelines_of([workers]) as pipelines:
        pipeline = pipelines[workers]
        pipeline.run(tensors, 8)
        found = unwatched(pipeline, tensors, options.seconds)
        alone = codec_alone(tensors, 8, workers)
        rate, stacks = watched(pipeline, tensors, stacks_of)
        _, holders = watched(pipeline, tensors, [*spy, "--gil", "--rate", "200"])
    pool = [stack for stack in stacks if stack.in_pool]
    waiting = [stack for stack in pool if stack.state == LOCK]
    return {
        "workers": workers,
        "counted": {**found, "codec alone, GB/s": alone, "under py-spy, GB/s": rate},
        "threads": {name: 2 * workers * share for name, share in shares(pool, "state").items()},
        "lock held": sum(stack.samples for stack in holders) / (200 * options.seconds),
        "lock held at": dict(list(shares(holders, "python_line").items())[:12]),
        "waiting at": dict(list(shares(waiting, "python_line").items())[:12]),
    }


def show(found: dict[str, Any]) -> None:
    """Print what was found for one number of workers."""
    print(f"{found['workers']} workers, {2 * found['workers']} threads")
    for name, value in found["counted"].items():
        print(f"  {name:56} {value:12,.4g}")
    print("  threads found so, mean:")
    for name, value in found["threads"].items():
        print(f"    {name:54} {value:12.2f}")
    print(f"  {'Python lock held, part of the time':56} {found['lock held']:12.2f}")
    for title in ("lock held at", "waiting at"):
        print(f"  {title}:")
        for name, share in found[title].items():
            print(f"    {name:54} {share:12.2f}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--py-spy", default="py-spy")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which(options.py_spy) is None:
        parser.error(f"there is no {options.py_spy}: pip install py-spy, or give --py-spy PATH")
    torch.set_num_threads(1)
    tensors = batch_tensors()
    ran_on = machine("torch", "numpy", "zstandard")
    if not options.json:
        print(json.dumps(ran_on))
    results = []
    for workers in options.workers:
        results.append(profile(workers, tensors, options))
        if not options.json:
            show(results[-1])
    if options.json:
        print(json.dumps({"machine": ran_on, "parameters": vars(options), "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
