"""Does the memory of `hs-capture extract` grow with the number of samples?

    PYTHONPATH=tests python benchmarks/extract_memory.py --samples 100000

Runs the command on so many small samples, against a stub of SGLang's HTTP interface in front of a
real ring and a real writer, and prints its resident memory at each tenth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUB = Path(__file__).parents[1] / "tests" / "http_stub.py"
TENTHS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--dump-root", type=Path, default=Path("/dev/shm"))
    samples = parser.parse_args().samples
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
        command = ["extract", "--input", source, "--output", output, "--server", server]
        with subprocess.Popen(
            [sys.executable, "-m", "hs_capture.cli", *command, "--dump-dir", dump_dir]
        ) as client:
            _watch(client, output / "extract.json", samples)
        stub.stdin.close()
    sys.exit(client.returncode)


def _watch(client: subprocess.Popen[bytes], summary: Path, samples: int) -> None:
    print("| samples | resident memory |\n|---|---|")
    told = 0
    while client.poll() is None:
        time.sleep(0.2)
        if not summary.exists():
            continue
        done = json.loads(summary.read_text())["captured"]
        if done * TENTHS // samples > told:
            told = done * TENTHS // samples
            print(f"| {done:,} | {_resident(client.pid) / 1e6:.1f} MB |", flush=True)


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
