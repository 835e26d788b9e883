"""LoRA: the states are those of the adapter's weights, and each record names its adapter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.captures import wait_for
from harness.client import generate, post
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from harness.tiny_model import LAYERS as DEPTH

LAYERS = [1, 3, 4]
RANK, ALPHA = 4, 8
TARGET = "o_proj"


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with random weights for one projection of every attention."""
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    folder.mkdir()
    chance = torch.Generator().manual_seed(3)
    base = load_file(model / "model.safetensors")
    weights = {}
    for layer in range(DEPTH):
        name = f"model.layers.{layer}.self_attn.{TARGET}"
        out, inner = base[f"{name}.weight"].shape
        for part, shape in (("lora_A", (RANK, inner)), ("lora_B", (out, RANK))):
            values = 0.2 * torch.randn(shape, generator=chance)
            weights[f"base_model.model.{name}.{part}.weight"] = values
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "bias": "none",
        "target_modules": [TARGET],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def tuned(model: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Transformers with the adapter added to the weights."""
    folder = tmp_path_factory.mktemp("tuned") / "tiny"
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    parts = load_file(adapter / "adapter_model.safetensors")
    for layer in range(DEPTH):
        name = f"model.layers.{layer}.self_attn.{TARGET}"
        a, b = (parts[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        weights[f"{name}.weight"] += ALPHA / RANK * b @ a
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return Reference(folder)


@pytest.fixture(scope="module")
def server(
    serve: Serve, zygote: Zygote, model: Path, adapter: Path, dump_dir: Path
) -> Iterator[Server]:
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_STAND_INS": "lora",
    }
    arguments = (
        *("--enable-lora", "--lora-paths", f"tuned={adapter}", "--lora-backend", "torch_native"),
        *("--max-lora-rank", str(RANK), "--lora-target-modules", TARGET),
    )
    with serve(zygote, ServerConfig(model, environment, arguments=arguments)) as server:
        yield server


def test_requests_with_and_without_an_adapter_share_passes(
    server: Server, dump_dir: Path, reference: Reference, tuned: Reference
) -> None:
    """The same prompts once with it and once without, in one stream of requests."""
    prompts = {f"prompt-{length}": prompt(length, length) for length in (5, 16, 40, 70)}
    with_adapter = {f"{rid}-tuned": tokens for rid, tokens in prompts.items()}
    body = [*prompts.items(), *with_adapter.items()]
    answers = send_all(server, body)
    assert set(answers) == {*prompts, *with_adapter}
    store = wait_for(dump_dir, [*prompts, *with_adapter])
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, LAYERS)
        assert store[rid].lora is store[rid].metadata["lora"] is None
        assert_exact(store[f"{rid}-tuned"], tokens, tuned, LAYERS)
        assert store[f"{rid}-tuned"].lora == store[f"{rid}-tuned"].metadata["lora"] == "tuned"


def test_an_adapter_that_was_loaded_later_is_named_too(
    server: Server, dump_dir: Path, adapter: Path, tuned: Reference
) -> None:
    """By the name that the server's user gave it."""
    body = {"lora_name": "later", "lora_path": str(adapter)}
    assert post(f"{server.url}/load_lora_adapter", body)["success"]
    tokens = prompt(200, 30)
    generate(server.url, tokens, "later", lora_path="later")
    capture = wait_for(dump_dir, ["later"])["later"]
    assert_exact(capture, tokens, tuned, LAYERS)
    assert capture.lora == "later"


def send_all(server: Server, prompts: list[tuple[str, list[int]]]) -> dict[str, object]:
    """Send them in one request, so that they are prefilled together."""
    body = {
        "input_ids": [tokens for _, tokens in prompts],
        "rid": [rid for rid, _ in prompts],
        "lora_path": ["tuned" if rid.endswith("-tuned") else None for rid, _ in prompts],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
    }
    answers = post(f"{server.url}/generate", body, timeout=120)
    return {answer["meta_info"]["id"]: answer for answer in answers}
