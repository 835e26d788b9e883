"""A session takes from a server what fits together, and leaves what it cannot store."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from capture_files import RUN, states, write_capture, write_run
from hs_capture import ConfigError, open_store
from hs_capture.extract.approval import Approval
from hs_capture.extract.arrivals import Arrivals
from hs_capture.extract.extraction import Effort, Extraction
from hs_capture.extract.failures import Failures
from hs_capture.extract.ledger import Ledger
from hs_capture.extract.samples import Prompt
from hs_capture.extract.server import Server
from hs_capture.format.run import Status

KEY = "x0a"
LONGEST = 300.0


class Capturing(HTTPServer):
    """Answers as a server does, and publishes a capture of each prompt into `run`.

    The weights have their version 0 until `change_after` prompts were computed, and then 1.
    """

    run: Path
    change_after = 1000
    computed = 0


class Handler(BaseHTTPRequestHandler):
    server: Capturing

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens, number = len(asked["input_ids"]), self.server.computed
        rows = states(tokens, seed=number)
        version = int(number >= self.server.change_after)
        streams = {"layer.1": rows, "final.pre_norm": rows + 1}
        write_capture(self.server.run, number, asked["rid"], streams, weights_version=version)
        self.server.computed += 1
        self._answer()

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def capturing(tmp_path: Path) -> Iterator[Capturing]:
    run = write_run(tmp_path / "dump", replace(RUN, vocab_size=1000))
    pid, beat = os.getpid(), time.time() + LONGEST
    status = Status(RUN.run_id, RUN.rank, "serving", pid, pid, 1000.0, beat, None, {}, None)
    status.write(run / "status-tp0.json")
    with Capturing(("127.0.0.1", 0), Handler) as server:
        server.run = run
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def extract(capturing: Capturing, output: Path, ledger: Ledger) -> Exception | None:
    """Ask for three prompts, one after the other; returns what stopped the session."""
    # Prompt n is the n-th that is computed after the probe, and its tokens are those of its file.
    prompts = [
        Prompt(number, f"row {number}", f"s{number}", np.arange(3) + 100 * (number + 1), ((0, 3),))
        for number in range(3)
    ]
    arrivals = Arrivals(capturing.run.parent, lambda rid: rid.startswith(f"{KEY}-"))
    arrivals.start()
    try:
        session = Extraction(
            iter(prompts),
            [Server(f"http://127.0.0.1:{capturing.server_port}", arrivals, KEY, 1)],
            ledger,
            Failures(output, print),
            (KEY, 1),
            Effort(concurrency=1, capture_seconds=LONGEST),
            Approval(output, [], ledger.origins()),
            print,
        )
        session.start()
        assert session.wait(LONGEST)
        return session.error
    finally:
        arrivals.stop()


def test_changed_weights_end_the_session(capturing: Capturing, tmp_path: Path) -> None:
    """Also when they were changed between two prompts, so that each capture is complete."""
    output = tmp_path / "out"
    output.mkdir()
    capturing.change_after = 3
    error = extract(capturing, output, Ledger(output, KEY, 3))
    assert isinstance(error, ConfigError)
    assert "the server's weights were changed: this capture is of version 1" in str(error)
    assert [capture.weights_version for capture in open_store(output)] == [0, 0]


def test_weights_changed_behind_the_probe_are_not_taken(
    capturing: Capturing, tmp_path: Path
) -> None:
    """The version that was met fills the store, and not the one of the first capture."""
    output = tmp_path / "out"
    output.mkdir()
    capturing.change_after = 1
    error = extract(capturing, output, Ledger(output, KEY, 3))
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "the server's weights were changed: this capture is of version 1, those of "
        f"{capturing.run} are of version 0: start the server again"
    )
    assert list(output.iterdir()) == []
    assert capturing.computed == 2


def test_what_the_output_does_not_take_stays(capturing: Capturing, tmp_path: Path) -> None:
    """The session ends, and the capture that it could not store is still at its source."""
    output = tmp_path / "out"
    output.mkdir()
    # A folder where the lines of the samples go: no file can be written there.
    ledger = Ledger(output, KEY, 3)
    (output / "samples.jsonl").mkdir()
    error = extract(capturing, output, ledger)
    assert isinstance(error, IsADirectoryError)
    assert [capture.rid for capture in open_store(capturing.run)] == [f"{KEY}-00000000-1.1"]
