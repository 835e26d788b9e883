"""A request that ends in the middle of its prompt leaves nothing behind in the server."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from capture_server import CaptureServer, prompt, wait_until
from hs_capture.capture.batch import Request
from hs_capture.hooks.requests import RequestBook
from hs_capture.hooks.served_weights import ServedWeights

ABORTS = 1000


class Req:
    """What the book reads of SGLang's request."""

    def __init__(self, rid: str, tokens: list[int]) -> None:
        self.rid = rid
        self.origin_input_ids = self.origin_input_ids_unpadded = tokens
        self.cached_tokens = 0
        self.to_finish = self.input_embeds = self.lora_id = None


def batch(req: Req) -> Any:
    """The first chunk of a prompt, two tokens."""
    mode = SimpleNamespace(name="EXTEND")
    return SimpleNamespace(forward_mode=mode, reqs=[req], prefix_lens=[0], extend_lens=[2])


def test_a_thousand_aborted_requests_are_forgotten(tmp_path: Path) -> None:
    """When SGLang lets go of a request, so do we; the ring is empty in the end."""
    book = RequestBook(None, ServedWeights(), str)
    known: list[weakref.ref[Request]] = []
    with CaptureServer(tmp_path) as server:
        for number in range(ABORTS):
            req = Req(f"r{number}", list(range(30)))
            snapshot = book.snapshot(batch(req))
            known.append(weakref.ref(snapshot.rows[0].request))
            server.tap.capture(snapshot, server.states((prompt(number, 30), 0, 2)))
            del req, snapshot
            server.tap.forget(book.take_gone())
        gc.collect()
        assert [request for request in known if request() is not None] == []
        wait_until(lambda: server.drained, "an empty ring")
        wait_until(lambda: len(server.index()) == ABORTS, "every capture")
        assert server.counter("rows_dropped") == 0
    assert {line.incomplete_reason for line in server.index()} == {"aborted"}
    assert {line.missing for line in server.index()} == {((2, 30),)}
