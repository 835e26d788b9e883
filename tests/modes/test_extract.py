"""An extraction that meets everything: a server that is killed, a client that is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from harness.client import generate_concurrently
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture import open_store
from hs_capture.samples import read_samples

LAYERS = [1, 3, 4]
SAMPLES = 500
SECONDS = 400.0


class Client:
    """The command, started again and again on the same input and output."""

    def __init__(self, folder: Path, dump_dir: Path, tokens: list[list[int]]) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out"
        self.dump_dir, self.log = dump_dir, folder / "log"
        rows = [
            {"id": f"s{i}", "input_ids": ids, "loss_mask": [0] + [1] * (len(ids) - 1)}
            for i, ids in enumerate(tokens)
        ]
        self.input.write_text("\n".join(map(json.dumps, rows)))

    def start(self, server: Server) -> subprocess.Popen[bytes]:
        """Start it, and do not wait."""
        options = {
            "--input": self.input,
            "--output": self.output,
            "--server": server.url,
            "--dump-dir": self.dump_dir,
            "--concurrency": 32,
        }
        pairs = [str(text) for pair in options.items() for text in pair]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "hs_capture.cli", "extract", *pairs],
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
            )

    def done(self) -> int:
        """How many samples have a line."""
        file = self.output / "samples.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def wait_for(self, samples: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until so many samples are done."""
        deadline = time.monotonic() + SECONDS
        while self.done() < samples:
            assert process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


def test_in_the_end_every_sample_is_there_once_and_right(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path, reference: Reference
) -> None:
    """500 samples, 32 at a time; Ctrl-C, a killed server that comes back, a killed client."""
    dump_dir = tmp_path / "dump"
    tokens = [prompt(i, 5 + i % 40) for i in range(SAMPLES)]
    client = Client(tmp_path, dump_dir, tokens)
    config = ServerConfig(
        model, {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}, chunk=64
    )
    with serve(zygote, config) as server:
        process = client.start(server)
        client.wait_for(60, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130, client.log.read_text()
        interrupted = client.done()
        assert interrupted < SAMPLES
        process = client.start(server)
        client.wait_for(interrupted + 60, process)
        server.kill(spare_the_writer=True)
    with serve(zygote, replace(config, port=server.port)) as server:
        client.wait_for(client.done() + 60, process)
        process.kill()
        process.wait()
        assert client.done() < SAMPLES
        process = client.start(server)
        assert process.wait(SECONDS) == 0, client.log.read_text()
        wanted = [(f"check-{i}", ids) for i, ids in enumerate(tokens)]
        answers = generate_concurrently(server.url, wanted, 8)
    store, samples = open_store(client.output), read_samples(client.output)
    assert samples is not None
    assert Counter(s.number for s in samples.values()) == Counter(range(SAMPLES))
    assert Counter(capture.rid for capture in store) == Counter(samples.keys())
    head = reference.head_weight
    for rid, sample in samples.items():
        capture = store[rid]
        assert (sample.id, sample.loss_mask) == (
            f"s{sample.number}",
            ((1, capture.num_tokens),),
        )
        assert capture.input_ids.tolist() == tokens[sample.number]
        assert capture.complete
        # What a trainer makes of the final state has to be what the engine said.
        last = capture.last_hidden_states("post_norm", (capture.num_tokens - 1, capture.num_tokens))
        token = int((last[0] @ head.T).argmax())
        assert token == answers[f"check-{sample.number}"]["output_ids"][0]
        if sample.number % 10 == 0:
            assert_exact(capture, tokens[sample.number], reference, LAYERS)
    told = json.loads((client.output / "extract.json").read_text())
    files = list(client.output.rglob("*.hsc"))
    assert (told["state"], told["samples"], told["sessions"]) == ("finished", SAMPLES, 3)
    assert (told["captured"], told["failed"]) == (SAMPLES, 0)
    assert told["tokens"] == sum(map(len, tokens))
    assert told["stored_bytes"] == sum(path.stat().st_size for path in files)
    assert len(files) == SAMPLES
