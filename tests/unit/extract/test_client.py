"""What a server answers decides whether a request is tried again, and when."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

from hs_capture import ConfigError, FormatError
from hs_capture.extract.client import (
    Client,
    NobodyError,
    RefusedError,
    RowRefusedError,
    ServerError,
    ServerGoneError,
)


class Answering(HTTPServer):
    """Answers every request with `status` and `body`, and keeps what was asked last."""

    status = 200
    body = b"{}"
    asked: dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.asked = {"path": self.path, **json.loads(self.rfile.read(length))}
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: Answering) -> None:
    Client(f"http://127.0.0.1:{server.server_port}/base/").prefill(np.array([5, 6]), "r")


def test_a_prompt_is_one_greedy_token_past_the_prefix_cache(server: Answering) -> None:
    ask(server)
    assert server.asked == {
        "path": "/base/generate",
        "input_ids": [5, 6],
        "rid": "r",
        "extra_key": "r",
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
    }


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RowRefusedError),
        (401, RefusedError),
        (403, RefusedError),
        (404, RefusedError),
        (413, RowRefusedError),
        (422, RowRefusedError),
        (500, ServerError),
        (502, ServerGoneError),
        (503, NobodyError),
        (504, ServerGoneError),
    ],
)
def test_statuses(server: Answering, status: int, error: type[Exception]) -> None:
    server.status, server.body = status, b'{"error": {"message": "too\\nlong"}}'
    with pytest.raises(error, match=rf"answered {status}: too long$") as raised:
        ask(server)
    assert type(raised.value) is error


def test_an_answer_that_is_no_json_is_quoted(server: Answering) -> None:
    server.status, server.body = 500, b"<html>\noops"
    with pytest.raises(ServerError, match=r"answered 500: <html> oops$"):
        ask(server)


def test_nobody_and_somebody_who_hangs_up() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(NobodyError, match="Connection refused"):
            client.prefill(np.array([1]), "r")
        listening.listen()

        def hang_up() -> None:
            connection, _ = listening.accept()
            connection.recv(1 << 16)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ServerGoneError) as gone:
            client.prefill(np.array([1]), "r")
        thread.join()
    # Somebody had the request.
    assert not isinstance(gone.value, NobodyError)


def test_a_server_that_says_nothing_is_gone_after_a_while() -> None:
    """Also when a shorter time was given for this request."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ServerGoneError, match=rf"^{url}: no answer within 0\.2 s$"):
            Client(url, 0.2).prefill(np.array([1]), "r")
        with pytest.raises(ServerGoneError, match=r": no answer within 0\.1 s$"):
            Client(url).require_answer(0.1)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", "http://", ""])
def test_an_address_has_a_scheme_and_a_host(url: str) -> None:
    with pytest.raises(ConfigError, match="expected an address such as http"):
        Client(url)


def test_the_most_likely_token_is_told_where_the_answer_has_it(server: Answering) -> None:
    client = Client(f"http://127.0.0.1:{server.server_port}")
    server.body = b'{"output_ids": [31], "meta_info": {"id": "r"}}'
    assert client.prefill(np.array([5, 6]), "r") == 31
    for server.body in (b"{}", b"", b'{"output_ids": ["x"]}'):
        assert client.prefill(np.array([5, 6]), "r") is None


def test_scoring_asks_for_logprobs_from_a_token_on(server: Answering) -> None:
    client = Client(f"http://127.0.0.1:{server.server_port}")
    server.body = b'{"output_ids": [31], "meta_info": {"input_token_logprobs": [[-0.5, 6, null]]}}'
    answer = client.score(np.array([5, 6]), "r", 1)
    assert (answer.next_token, answer.logprobs) == (31, ((6, -0.5),))
    assert (server.asked["return_logprob"], server.asked["logprob_start_len"]) == (True, 1)
    assert server.asked["extra_key"] == "r"
    server.body = b"hello"
    with pytest.raises(FormatError, match="not valid JSON"):
        client.score(np.array([5, 6]), "r", 1)
