"""The main job for real: a SGLang server on the CPU, its hidden states captured, read and compared.

Builds a tiny DeepSeek-V2 with random weights, serves it with the installed plugin, sends 64
requests, asks ``hs_capture.verify``, and compares every captured tensor with what Hugging Face
transformers computes with the same weights. Exits 0 when all of it is right. Nothing stays on the
machine, unless it is told where to keep the model, the captures and the server's log.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.captures import status, wait_for, wait_until
from harness.client import generate, generate_concurrently
from harness.launching import Spawner
from harness.prompts import prompt
from harness.server import Server, ServerConfig, ServerEndedError, serving
from harness.tiny_model import build_tiny_model

if TYPE_CHECKING:
    from types import FrameType

    from hs_capture import CaptureStore

CHUNK = 64
REQUESTS = 64
ALONE = 16
AT_ONCE = 16
LAYERS = "-1,1,3,5"
# Prompts around the chunk are the ones that go wrong; the rest is random.
EDGES = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 300]


class Progress:
    """One line on the terminal that is written over; a few lines where there is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.monotonic()
        self._told = self._started
        self._live = sys.stdout.isatty()
        print(f"-- {what}", end="" if self._live else "\n", flush=True)

    def at(self, detail: str = "") -> None:
        """Show how far it is."""
        now = time.monotonic()
        if now - self._told >= (0.2 if self._live else 10):
            self._told = now
            self._show(f"{detail} {now - self._started:.0f} s".strip(), "")

    def done(self, detail: str) -> None:
        """Show the result; nothing more comes."""
        self._show(f"{detail}, {time.monotonic() - self._started:.1f} s", "\n")

    def _show(self, detail: str, end: str) -> None:
        if self._live:
            print(f"\r\033[K-- {self._what}: {detail}", end=end, flush=True)
        else:
            print(f"   {detail}", flush=True)


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--keep", type=Path, help="a new or empty folder that keeps everything")
    keep: Path | None = parser.parse_args().keep
    signal.signal(signal.SIGTERM, _interrupt)
    if keep is not None:
        keep = keep.absolute()
        try:
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
            used = any(keep.iterdir())
        except OSError as error:
            parser.error(f"{keep} cannot be used: {error.strerror}")
        if used:
            parser.error(f"{keep} is not empty: remove what is in it, or name another folder")
        code = _run(keep)
        print(f"\nkept: {keep / 'model'}, {keep / 'dump'} and {keep / 'log'}")
        return code
    shared_memory = Path("/dev/shm")
    folder = shared_memory if shared_memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="hs-test-demo-", dir=folder) as temporary:
        return _run(Path(temporary))


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(folder: Path) -> int:
    progress = Progress("building a tiny DeepSeek-V2 (8 layers, hidden size 128, random weights)")
    model = build_tiny_model(folder / "model")
    progress.done("built")

    dump_dir = folder / "dump"
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": LAYERS,
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "64M",
    }
    print("   " + " ".join(f"{name}={value}" for name, value in environment.items()))
    progress = Progress(f"starting SGLang on the CPU, prefill in chunks of {CHUNK} tokens")
    config = ServerConfig(model, environment, chunk=CHUNK)
    prompts = _prompts()
    with serving(Spawner(), config, folder / "log", waiting=progress.at) as server:
        progress.done("serving")
        _print_our_lines(server)
        _send(server, prompts)
        progress = Progress("waiting until the captures are published")
        store = wait_for(dump_dir, prompts)
        counters = wait_until(
            lambda: status(dump_dir)["counters"], lambda seen: seen["captures"] >= len(prompts)
        )
        progress.done(f"{len(store)} captures")
        print("-- python -m hs_capture.verify --dump-dir ...", flush=True)
        verified = subprocess.run(
            [sys.executable, "-m", "hs_capture.verify", "--dump-dir", str(dump_dir)],
            env={**os.environ, **environment},
            # Here the package of the checkout would come before the installed one.
            cwd=dump_dir.parent,
            check=False,
        ).returncode
    print("-- the server has ended, and no process of it is left")

    from harness.compare import TOLERANCE

    complete = sum(capture.complete for capture in store)
    found = _compare(store, prompts, model)
    _print_table(prompts, counters, found)
    right = {
        "verify ended with 0": verified == 0,
        f"{len(prompts)} requests are {len(prompts)} complete captures": (
            len(store) == complete == len(prompts)
        ),
        f"every tensor is within {TOLERANCE:g} of transformers": (max(found.values()) <= TOLERANCE),
    }
    for what, holds in right.items():
        print(f"{'ok  ' if holds else 'FAIL'} {what}")
    return 0 if all(right.values()) else 1


def _prompts() -> dict[str, list[int]]:
    rng = random.Random(2)
    lengths = EDGES + [rng.randint(3, 200) for _ in range(REQUESTS - len(EDGES))]
    return {f"demo-{i:02}": prompt(i, length) for i, length in enumerate(lengths)}


def _print_our_lines(server: Server) -> None:
    for line in server.log().splitlines():
        if "hs-capture" in line and "attached" in line:
            print(f"   {line[line.index('hs-capture') :]}")


def _send(server: Server, prompts: dict[str, list[int]]) -> None:
    progress = Progress(
        f"sending {ALONE} requests one by one, then {REQUESTS - ALONE}, {AT_ONCE} at once"
    )
    items = list(prompts.items())
    for sent, (rid, tokens) in enumerate(items[:ALONE], 1):
        generate(server.url, tokens, rid, max_new_tokens=4)
        progress.at(f"{sent} of {REQUESTS}")
    generate_concurrently(
        server.url,
        items[ALONE:],
        AT_ONCE,
        max_new_tokens=4,
        answered=lambda count: progress.at(f"{ALONE + count} of {REQUESTS}"),
    )
    progress.done(f"{REQUESTS} of {REQUESTS} answered")


def _compare(store: CaptureStore, prompts: dict[str, list[int]], model: Path) -> dict[str, float]:
    """Return the largest relative error of each tensor over all captures."""
    # torch takes seconds to import; until then an interruption must already end in one line.
    from harness.compare import errors
    from harness.reference import Reference

    progress = Progress("comparing every tensor with transformers")
    reference = Reference(model)
    largest: dict[str, float] = {}
    for count, (rid, tokens) in enumerate(prompts.items(), 1):
        for name, error in errors(store[rid], tokens, reference).items():
            largest[name] = max(error, largest.get(name, 0.0))
        progress.at(f"{count} of {len(prompts)}")
    progress.done(f"{len(prompts)} captures, {len(largest)} tensors each")
    return largest


def _print_table(
    prompts: dict[str, list[int]], counters: dict[str, int], found: dict[str, float]
) -> None:
    lengths = [len(tokens) for tokens in prompts.values()]
    raw, stored = counters["raw_bytes"], counters["stored_bytes"]
    longer = sum(length > CHUNK for length in lengths)
    rows = [
        ("requests", f"{len(lengths)}"),
        ("longer than a chunk", f"{longer}"),
        ("prompt tokens", f"{sum(lengths):,} ({min(lengths)} to {max(lengths)} a request)"),
        ("raw bytes", f"{raw:,}"),
        ("stored bytes", f"{stored:,}"),
        ("ratio", f"{raw / stored:.2f}"),
    ]
    _print_rows(("captured", ""), rows)
    _print_rows(
        ("tensor", "largest relative error"),
        [(_words(name), f"{error:.1e}" if error else "0") for name, error in found.items()],
    )


def _words(name: str) -> str:
    kind, _, which = name.partition(".")
    if kind == "final":
        return f"final state, {which.replace('_', '-')}"
    return "embedding (layer -1)" if which == "-1" else f"output of layer {which}"


def _print_rows(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
    print(f"\n{head[0]:<24}{head[1]}".rstrip())
    print("-" * 56)
    for name, value in rows:
        print(f"{name:<24}{value}")
    print("-" * 56)


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is left running", file=sys.stderr)
        code = 130
    except (ServerEndedError, TimeoutError, AssertionError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)
