"""Does the memory of `hs-capture extract` and of `export` grow with the number of samples?

    PYTHONPATH=tests python benchmarks/extract_memory.py --samples 100000

Runs extract on so many small samples, against a stub of SGLang's HTTP interface in front of a real
ring and a real writer, then exports what came of it. Prints the resident memory of each at every
tenth. What cannot be flat is a store's index: whoever opens a store holds an entry of it for each
capture.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from figures import machine

STUB = Path(__file__).parents[1] / "tests" / "http_stub.py"
TENTHS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--dump-root", type=Path, default=Path("/dev/shm"))
    samples = parser.parse_args().samples
    print(json.dumps(machine("orjson", "numpy", "torch")), flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=parser.parse_args().dump_root) as dump_dir,
        subprocess.Popen(
            [sys.executable, str(STUB), dump_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as stub,
    ):
        assert stub.stdout is not None
        assert stub.stdin is not None
        port = stub.stdout.readline().strip()
        output = Path(folder) / "out"
        source = Path(folder) / "in.jsonl"
        with source.open("w") as file:
            for number in range(samples):
                file.write(json.dumps({"input_ids": [number % 64] * (1 + number % 8)}) + "\n")
        server = f"http://127.0.0.1:{port}"
        extract = ["extract", "--input", source, "--server", server, "--dump-dir", dump_dir]
        lines = output / "samples.jsonl"
        code = _watched([*extract, "--output", output], lines, samples)
        stub.stdin.close()
        if code == 0:
            exported = Path(folder) / "exported"
            export = ["export", "--store", output, "--format", "safetensors", "--workers", "1"]
            lines = exported / "exported.jsonl"
            code = _watched([*export, "--output", exported], lines, samples)
    sys.exit(code)


def _watched(command: Sequence[str | Path], lines: Path, samples: int) -> int:
    """Run a command that appends a line to a file for each sample; return its exit code."""
    print(f"| samples | resident memory of {command[0]} |\n|---|---|", flush=True)
    told, read, done, resident = 0, 0, 0, 0
    with subprocess.Popen([sys.executable, "-m", "hs_capture.cli", *command]) as process:
        while process.poll() is None:
            time.sleep(0.2)
            # A process that has just ended has none: then what it had a moment before counts.
            resident = _resident(process.pid) or resident
            if not lines.exists():
                continue
            with lines.open("rb") as file:
                file.seek(read)
                new = file.read()
            read += len(new)
            done += new.count(b"\n")
            if done * TENTHS // samples > told:
                told = done * TENTHS // samples
                print(f"| {done:,} | {resident / 1e6:.1f} MB |", flush=True)
    return process.returncode


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
