"""SGLang's HTTP interface before a real ring and a real writer, without a model.

`python http_stub.py DUMP_DIR [PORT]` prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from capture_server import CaptureServer
from hs_capture.capture.batch import Request


class Stub(ThreadingHTTPServer):
    """Answers as soon as the rows of the prompt are in the ring."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: CaptureServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.server = server
        self.keys = itertools.count()
        self.lock = threading.Lock()

    def status(self, method: str, rid: str | None) -> int:
        """Return what a request is answered with; only with 200 its prompt is computed."""
        return 200

    def prefill(self, rid: str, input_ids: list[int]) -> Request:
        """Capture one prompt, as one forward pass."""
        with self.lock:
            ids = np.asarray(input_ids, np.int64)
            request = Request(next(self.keys), rid, ids, 0)
            self.server.prefill((request, 0, len(ids)))
            return request


class Handler(BaseHTTPRequestHandler):
    """Knows /generate, and answers everything else with nothing."""

    server: Stub

    def do_GET(self) -> None:
        """Answer that somebody is there."""
        self._answer(self.server.status("GET", None), {})

    def do_POST(self) -> None:
        """Prefill."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.status("POST", body["rid"])
        if status == 200:
            self.server.prefill(body["rid"], body["input_ids"])
        self._answer(status, {"text": ""})

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main(dump_dir: Path, port: int = 0) -> None:
    """Serve until the standard input ends; port 0 is a free one."""
    with CaptureServer(dump_dir, dtype="bfloat16", run_id=f"run-{os.getpid()}") as server:
        # SGLang answers long after its writer has begun.
        server.status()
        stub = Stub(server, port)
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        print(stub.server_port, flush=True)
        sys.stdin.read()
        stub.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
