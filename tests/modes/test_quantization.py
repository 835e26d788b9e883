"""A model whose weights are quantised: its states are not, and are stored as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from harness.captures import run_info, status
from harness.launching import INTERPRETED, Zygote
from harness.prompts import prompt
from harness.server import Serve, ServerConfig
from harness.tapped import Tapped, assert_same_bits
from harness.tiny_model import build_tiny_model

LAYERS = [-1, 0, 3, 6]


@pytest.fixture(scope="module")
def tapped(
    serve: Serve, interpreting: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tapped]:
    """A server that quantises linear layers to float8 while it loads them.

    The experts stay in bfloat16, and so does the layer that the attention takes apart.
    """
    model = build_tiny_model(tmp_path_factory.mktemp("model") / "tiny", torch_dtype="bfloat16")
    folder = tmp_path_factory.mktemp("tap")
    dump_dir = tmp_path_factory.mktemp("capture") / "dump"
    environment = {
        **INTERPRETED,
        "SGLANG_FP8_IGNORED_LAYERS": "experts,kv_b_proj",
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_TAP": str(folder),
    }
    config = ServerConfig(model, environment, dtype="bfloat16", arguments=["--quantization", "fp8"])
    with serve(interpreting, config) as server:
        yield Tapped(server, folder, torch.bfloat16, dump_dir)


@pytest.mark.parametrize("length", [1, 17, 40])
def test_stored_bits_are_the_bits_at_the_tap(tapped: Tapped, length: int) -> None:
    """Every layer and both final states, in the dtype that the model computes in."""
    assert_same_bits(tapped, prompt(length, length), f"quantised-{length}", LAYERS)
    weights = json.loads((tapped.folder / "report.json").read_text())["dtypes"]
    assert "torch.float8_e4m3fn" in weights
    assert run_info(tapped.dump_dir)["dtype"] == "bfloat16"
    assert status(tapped.dump_dir)["counters"]["hook_errors"] == 0
