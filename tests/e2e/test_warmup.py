"""The request that SGLang's HTTP server sends itself when it has started."""

from __future__ import annotations

from pathlib import Path

from harness.captures import status, wait_until
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.reference import Reference
from harness.server import START_SECONDS, Serve, ServerConfig
from hs_capture import CaptureStore, open_store

# What SGLang sends a server without a tokenizer.
TOKENS = [10, 11, 12]


def test_it_is_captured_like_any_other_under_a_random_rid(
    serve: Serve, zygote: Zygote, model: Path, reference: Reference, dump_dir: Path
) -> None:
    """Nobody else sends anything, and its capture is complete and right."""
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}

    def store() -> CaptureStore:
        return open_store(dump_dir)

    with serve(zygote, ServerConfig(model, environment, warmup=True)) as server:
        # SGLang logs this when the request was answered.
        wait_until(server.log, lambda log: "ready to roll" in log, seconds=START_SECONDS)
        (capture,) = wait_until(store, lambda found: len(found) > 0)
    assert len(capture.rid) == 32
    assert set(capture.rid) <= set("0123456789abcdef")
    assert_exact(capture, TOKENS, reference, [1, 3, 4])
    assert len(store()) == status(dump_dir)["counters"]["captures"] == 1
