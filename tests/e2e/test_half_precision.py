"""In bfloat16 and in float16 the stored bits are the bits at the tap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from harness.captures import wait_for
from harness.client import generate
from harness.launching import Zygote
from harness.prompts import prompt
from harness.server import Serve, Server, ServerConfig

LAYERS = [-1, 0, 3, 6]


@dataclass(frozen=True)
class Tapped:
    """A server, and the folder in which an independent tap records every forward."""

    server: Server
    folder: Path
    dtype: torch.dtype
    dump_dir: Path

    def forwards(self) -> set[Path]:
        """Return the files of all forwards so far."""
        return set(self.folder.glob("*.pt"))


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
    tokens = prompt(length, length)
    rid = f"bits-{length}"
    before = tapped.forwards()
    generate(tapped.server.url, tokens, rid, max_new_tokens=3)
    capture = wait_for(tapped.dump_dir, [rid])[rid]
    assert capture.complete
    assert capture.dtype == tapped.dtype
    assert capture.layer_ids == LAYERS
    seen = _rows_of(sorted(tapped.forwards() - before), length)
    assert seen["input_ids"].tolist() == tokens
    aux = capture.aux_hidden_states()
    found = {f"layer.{layer_id}": aux[:, column] for column, layer_id in enumerate(LAYERS)}
    found["final.pre_norm"] = capture.last_hidden_states("pre_norm")
    found["final.post_norm"] = capture.last_hidden_states("post_norm")
    for name, states in found.items():
        assert states.dtype == seen[name].dtype == tapped.dtype
        assert states.view(torch.int16).equal(seen[name].view(torch.int16)), name


def _rows_of(forwards: list[Path], length: int) -> dict[str, torch.Tensor]:
    """Join the rows of the prompt from the forwards of one request; generated tokens follow it."""
    records = [torch.load(path) for path in forwards]
    joined = {name: torch.cat([record[name] for record in records]) for name in records[0]}
    prompt_rows = joined["positions"] < length
    assert joined["positions"][prompt_rows].tolist() == list(range(length))
    return {name: rows[prompt_rows] for name, rows in joined.items()}
