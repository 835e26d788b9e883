"""An error of ours while serving costs the capture, never the answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.captures import status, wait_until
from harness.client import generate
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from hs_capture import open_store

# What SGLang runs of ours with each batch, from the outside in.
FAULTS = [
    "hs_capture.hooks.session:Session.snapshot",
    "hs_capture.hooks.session:Session.begin",
    "hs_capture.hooks.session:Session.end",
    "hs_capture.hooks.session:Session._receive",
    "hs_capture.hooks.model:Attachment._is_wanted",
    "hs_capture.hooks.model:Attachment._with_pre_norm",
    "hs_capture.hooks.model:Attachment._on_norm",
    "hs_capture.hooks.model:Attachment._on_logits",
    "hs_capture.hooks.model:Attachment._divide",
    "hs_capture.hooks.requests:RequestBook._request",
    "hs_capture.hooks.requests:RequestBook.take_gone",
    "hs_capture.capture.tap:Tap.capture",
]
# With one of these alone the rows of a batch are still taken.
HARMLESS = ("Session.end", "RequestBook.take_gone")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.partition(":")[2])
def test_requests_are_answered_in_spite_of_an_error(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path, reference: Reference, fault: str
) -> None:
    """The right tokens come; the error is counted, told, and no capture claims to be complete."""
    dump_dir = tmp_path / "dump"
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_FAULT": fault,
    }
    with serve(zygote, ServerConfig(model, environment)) as server:
        for i, length in enumerate([1, 20, 50]):
            tokens = prompt(i, length)
            answer = generate(server.url, tokens, f"fault-{i}", max_new_tokens=3)
            assert answer["output_ids"][0] == reference.next_token(tokens)
            assert len(answer["output_ids"]) == 3
        seen = wait_until(
            lambda: status(dump_dir),
            lambda seen: seen["counters"]["hook_errors"] > 0 and seen["last_error"] is not None,
        )
        assert seen["state"] == "serving"
        assert seen["counters"]["hook_errors"] > 0
        assert f"planted in {fault}" in seen["last_error"]
        assert f"planted in {fault}" in server.log()
        told = subprocess.run(
            [sys.executable, "-m", "hs_capture.verify", "--dump-dir", str(dump_dir)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert f"planted in {fault}" in told.stdout
    if not fault.endswith(HARMLESS):
        assert not [capture.rid for capture in open_store(dump_dir) if capture.complete]
