"""In bfloat16 and in float16 the stored bits are the bits at the tap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.launching import Zygote
from harness.prompts import prompt
from harness.server import Serve, ServerConfig
from harness.tapped import Tapped, assert_same_bits

LAYERS = [-1, 0, 3, 6]


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def tapped(
    request: pytest.FixtureRequest,
    serve: Serve,
    zygote: Zygote,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Tapped]:
    """A server of two-byte states with the tap of the tests beside ours."""
    folder = tmp_path_factory.mktemp("tap")
    dump_dir = tmp_path_factory.mktemp("capture") / "dump"
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_TAP": str(folder),
    }
    with serve(zygote, ServerConfig(model, environment, dtype=request.param)) as server:
        yield Tapped(server, folder, getattr(torch, request.param), dump_dir)


@pytest.mark.parametrize("length", [1, 16, 17, 100])
def test_stored_bits_are_the_bits_at_the_tap(tapped: Tapped, length: int) -> None:
    """Every layer and both final states, through every chunk, bit for bit."""
    assert_same_bits(tapped, prompt(length, length), f"bits-{length}", LAYERS)
