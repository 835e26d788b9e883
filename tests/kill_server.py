"""Servers without SGLang that work until they are killed: forks of one process, so that each of
them starts at once.

Each line of the input, a dump directory and a run id, starts one. The answer is its process id and
the mark of its writer.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import torch

from capture_server import CaptureServer, prompt

LENGTH = 160
CHUNK = 60


def serve(dump: Path, run_id: str) -> None:
    """Prefill prompts in chunks, two in each pass, for ever."""
    server = CaptureServer(dump, run_id=run_id)
    server.launcher.start()
    print(os.getpid(), server.mark, flush=True)
    for key in itertools.count():
        short, long = prompt(2 * key, 1 + key % 30), prompt(2 * key + 1, LENGTH)
        server.prefill((short, 0, short.num_tokens), (long, 0, CHUNK))
        server.prefill((long, CHUNK, LENGTH - CHUNK))


def main() -> None:
    """Serve where the input says, each time in a process of its own."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        dump, run_id = line.split()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(Path(dump), run_id)


if __name__ == "__main__":
    main()
