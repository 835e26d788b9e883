"""Does the memory of the scheduler and of the writer stay flat?

    PYTHONPATH=tests python benchmarks/memory.py [--records 1000000] [--requests 10000] [--json]

Two loads. Records: this process plays the scheduler and sends small records through the real tap
and ring to the real writer, which publishes each as a file on tmpfs; folders that are full are
removed, as a trainer would do. Requests: short prompts through a SGLang server on the CPU, with the
plugin on, and then with its variable unset, for SGLang's own growth.

Memory is RssAnon of /proc: what a process has for itself. The ring is shared and of a fixed size.
It is read at the tenths of each load. Growth is the slope of a straight line through the last nine,
for the first tenth warms everything up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import writers
from figures import machine

from harness.captures import status, wait_until
from harness.client import post
from harness.launching import Spawner
from harness.processes import of_server
from harness.server import Server, ServerConfig, serving
from harness.tiny_model import VOCAB, build_tiny_model
from hs_capture.capture.batch import Request, batch_of
from hs_capture.ring.message import StreamSpec

TENTHS = 10
BATCH, TOKENS, WIDTH = 50, 4, 64
STREAMS = tuple(StreamSpec(name, "bfloat16", WIDTH) for name in ("layer.1", "final.pre_norm"))
PROMPT_TOKENS, AT_ONCE = 8, 50


@dataclass
class Process:
    """One process that is watched: KiB of anonymous memory at each tenth of the load."""

    name: str
    pid: int
    kibibytes: list[int] = field(default_factory=list)

    def look(self) -> None:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"/proc/{self.pid}/status does not tell RssAnon")
        self.kibibytes.append(int(found[1]))
        now = f"{self.name}: {len(self.kibibytes)}/{TENTHS}, {int(found[1]) / 1024:.1f} MiB"
        print(now, file=sys.stderr, flush=True)

    def bytes_per_item(self, items: int) -> float:
        """Growth over the last nine tenths of `items`."""
        at = np.arange(len(self.kibibytes) - 1) * (items / TENTHS)
        return float(np.polyfit(at, self.kibibytes[1:], 1)[0]) * 1024


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on tmpfs that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="hs-bench-", dir="/dev/shm"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def send_records(root: Path, records: int) -> list[Process]:
    """Send `records` through ring and writer; a request is gone when the next batch begins."""
    tap, producer, launcher = writers.start(root, 16 << 20, STREAMS, 2, TOKENS)
    status_file = root / "status-bench.json"
    wait_until(status_file.exists, bool)
    writer = json.loads(status_file.read_bytes())["writer_pid"]
    watched = [Process("scheduler (this process)", os.getpid()), Process("writer", writer)]
    states = [torch.randn(BATCH * TOKENS, WIDTH).bfloat16() for _ in STREAMS]
    ids = np.arange(TOKENS, dtype=np.int64)

    def one_batch(number: int) -> None:
        keys = range(number * BATCH, (number + 1) * BATCH)
        requests = [Request(key, f"r{key}", ids + 0, 0) for key in keys]
        tap.capture(batch_of((request, 0, TOKENS) for request in requests), states)
        tap.forget(keys)

    def drained() -> bool:
        return producer.free == producer.region.capacity

    for tenth in range(TENTHS):
        share = records // TENTHS // BATCH
        for number in range(tenth * share, (tenth + 1) * share):
            one_batch(number)
            if number % 1000 == 999:
                remove_full_folders(root)
        wait_until(drained, bool, 600)
        remove_full_folders(root)
        for process in watched:
            process.look()
    counters = producer.region.counters()
    launcher.hang_up()
    wait_until(lambda: json.loads(status_file.read_bytes())["state"], "ended".__eq__, 60)
    if counters["rows_dropped"] or counters["writer_errors"]:
        raise RuntimeError(f"something went wrong: {counters}")
    return watched


def remove_full_folders(root: Path) -> None:
    """Remove all published captures but those of the newest two folders."""
    for path in sorted(root.glob("[0-9]*"))[:-2]:
        shutil.rmtree(path)


def serve_requests(root: Path, model: Path, requests: int, on: bool) -> list[Process]:
    """Send `requests` to a server with the plugin on or off."""
    dump_dir = root / "dump"
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"} if on else {}
    arguments = ["--disable-radix-cache", "--log-level", "error"]
    config = ServerConfig(model, environment, chunk=-1, dtype="bfloat16", arguments=arguments)
    with serving(Spawner(), config, root / "log") as server:
        watched = [Process("scheduler", scheduler_of(server))]
        if on:
            wait_until(lambda: len(list(dump_dir.glob("*/status-*.json"))), bool)
            watched.append(Process("writer", status(dump_dir)["writer_pid"]))
        dice = np.random.default_rng(0)
        sent = 0
        for _ in range(TENTHS):
            for _ in range(requests // TENTHS // AT_ONCE):
                prompts = dice.integers(2, VOCAB, (AT_ONCE, PROMPT_TOKENS)).tolist()
                sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
                body = {"input_ids": prompts, "sampling_params": sampling}
                post(f"{server.url}/generate", body, 120)
                sent += AT_ONCE
            if on:
                wait_for_captures(dump_dir, sent)
            for process in watched:
                process.look()
    return watched


def scheduler_of(server: Server) -> int:
    """The process id of SGLang's scheduler."""
    found = of_server(server.pid, server.mark)
    [pid] = [process.pid for process in found if process.command.startswith("sglang::scheduler")]
    return pid


def wait_for_captures(dump_dir: Path, count: int) -> None:
    seen = wait_until(lambda: status(dump_dir)["counters"]["captures"], count.__eq__, 120)
    if seen != count:
        raise RuntimeError(f"{seen} of {count} requests were captured: {status(dump_dir)}")


def measure(name: str, items: int, run: Callable[[], list[Process]]) -> dict[str, Any]:
    """Run one load and return what its processes had."""
    began = time.monotonic()
    watched = run()
    processes = [
        {**asdict(process), "bytes_per_item": process.bytes_per_item(items)} for process in watched
    ]
    return {
        "load": name,
        "items": items,
        "seconds": time.monotonic() - began,
        "processes": processes,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="0 leaves this load out")
    parser.add_argument("--requests", type=int, default=10_000, help="0 leaves this load out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loads = []
    if options.records:
        with folder() as root:
            run = lambda: send_records(root, options.records)  # noqa: E731
            loads.append(measure("records", options.records, run))
    for on in (True, False) if options.requests else ():
        with folder() as root:
            model = build_tiny_model(root / "model")
            name = f"requests, plugin {'on' if on else 'off'}"
            run = lambda: serve_requests(root, model, options.requests, on)  # noqa: B023, E731
            loads.append(measure(name, options.requests, run))
    ran_on = machine("torch", "sglang", "numpy", "orjson")
    report = {"machine": ran_on, "parameters": vars(options), "loads": loads}
    if options.json:
        print(json.dumps(report))
        return 0
    print(json.dumps(ran_on), json.dumps(vars(options)), sep="\n")
    for load in loads:
        print(f"{load['load']}: {load['items']:,} in {load['seconds']:.0f} s")
        for process in load["processes"]:
            at = " ".join(f"{k / 1024:.1f}" for k in process["kibibytes"])
            print(f"  {process['name']:26} MiB at each tenth: {at}")
            print(f"  {'':26} {process['bytes_per_item']:+.1f} bytes an item")
    return 0


if __name__ == "__main__":
    sys.exit(main())
