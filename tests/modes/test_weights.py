"""Weights that change under a capture: nothing of the new ones is taken for the old."""

from __future__ import annotations

from pathlib import Path

from harness.captures import status, wait_for, wait_until
from harness.client import generate, post
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from harness.tiny_model import build_tiny_model


def test_capture_ends_at_a_change_of_weights(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path, reference: Reference
) -> None:
    """What came before is exact, what comes after says why it has no rows, both are answered."""
    dump_dir = tmp_path / "dump"
    other = build_tiny_model(tmp_path / "other", seed=7)
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
        "SGLANG_HS_LAYERS": "1,3",
        "SGLANG_HS_FINAL": "both",
    }
    with serve(zygote, ServerConfig(model, environment)) as server:
        generate(server.url, prompt(1, 20), "before")
        (before,) = wait_for(dump_dir, ["before"])
        assert_exact(before, prompt(1, 20), reference, [1, 3])
        answer = post(f"{server.url}/update_weights_from_disk", {"model_path": str(other)})
        assert answer["success"], answer
        assert len(generate(server.url, prompt(2, 20), "after")["output_ids"]) == 1
        after = wait_for(dump_dir, ["before", "after"])["after"]
        assert (after.complete, after.incomplete_reason) == (False, "weights_changed")
        assert after.missing == [(0, 20)]
        seen = wait_until(lambda: status(dump_dir), lambda seen: seen["last_error"] is not None)
        assert "start the server again" in seen["last_error"]
