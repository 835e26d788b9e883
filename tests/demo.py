"""The main job for real: a SGLang server on the CPU, its hidden states captured, read and compared.

Builds a tiny DeepSeek-V2 with random weights, serves it with the installed plugin, sends 64
requests, asks ``hs_capture.verify``, and compares every captured tensor with what Hugging Face
transformers computes with the same weights. Then samples with loss masks become a training set:
``hs-capture extract``, ``hs-capture export``, and every tensor in the trainers' files compared with
the captures. Exits 0 when all of it is right. Nothing stays on the machine, unless it is told where
to keep all of it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import demo_training
from harness.captures import status, wait_for, wait_until
from harness.client import generate, generate_concurrently
from harness.launching import Spawner
from harness.prompts import prompt
from harness.server import Server, ServerConfig, ServerEndedError, serving
from harness.tiny_model import build_tiny_model
from terminal import Progress, print_rows, run_shown

if TYPE_CHECKING:
    from types import FrameType

    from hs_capture import Capture

CHUNK = 64
REQUESTS = 64
ALONE = 16
AT_ONCE = 16
LAYERS = "-1,1,3,5"
# Prompts around the chunk are the ones that go wrong; the rest is random.
EDGES = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 300]


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
        print(f"\nkept in {keep}: {', '.join(sorted(path.name for path in keep.iterdir()))}")
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
        verify = ["python", "-m", "hs_capture.verify"]
        verified = run_shown(verify, {"--dump-dir": dump_dir}, folder, **environment)
        rows = demo_training.write_samples(folder / "samples.jsonl", EDGES)
        extracted = demo_training.extract(server.url, folder)
    print("-- the server has ended, and no process of it is left")
    exported = {name: demo_training.export(folder, name) for name in demo_training.FORMATS}

    from harness.compare import TOLERANCE

    samples = [] if extracted else demo_training.collected(folder / "train", rows)
    captures = [(store[rid], tokens) for rid, tokens in prompts.items()]
    captures += [(sample.capture, sample.input_ids) for sample in samples]
    found = _compare(captures, model)
    _print_table(prompts, counters, found)
    right = {
        "verify ended with 0": verified == 0,
        f"{len(prompts)} requests are {len(prompts)} complete captures": (
            len(store) == sum(capture.complete for capture in store) == len(prompts)
        ),
        f"{len(rows)} samples are in the training set": (
            extracted == 0 and len(samples) == len(rows)
        ),
        f"every tensor of all captures is within {TOLERANCE:g} of transformers": (
            max(found.values()) <= TOLERANCE
        ),
        **{
            f"the files for {name} hold these captures, bit for bit, with ids and loss masks": (
                code == 0 and demo_training.same(folder, name, samples)
            )
            for name, code in exported.items()
        },
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


def _compare(captures: list[tuple[Capture, list[int]]], model: Path) -> dict[str, float]:
    """Return the largest relative error of each tensor over all captures of these prompts."""
    # torch takes seconds to import; until then an interruption must already end in one line.
    from harness.compare import errors
    from harness.reference import Reference

    progress = Progress("comparing every tensor with transformers")
    reference = Reference(model)
    largest: dict[str, float] = {}
    for count, (capture, tokens) in enumerate(captures, 1):
        for name, error in errors(capture, tokens, reference).items():
            largest[name] = max(error, largest.get(name, 0.0))
        progress.at(f"{count} of {len(captures)}")
    progress.done(f"{len(captures)} captures, {len(largest)} tensors each")
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
    print_rows(("captured", ""), rows)
    print_rows(
        ("tensor", "largest relative error"),
        [(_words(name), f"{error:.1e}" if error else "0") for name, error in found.items()],
    )


def _words(name: str) -> str:
    kind, _, which = name.partition(".")
    if kind == "final":
        return f"final state, {which.replace('_', '-')}"
    return "embedding (layer -1)" if which == "-1" else f"output of layer {which}"


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
