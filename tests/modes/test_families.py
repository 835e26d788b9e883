"""Other models of the family than DeepSeek-V2: their routing, their query, their wrapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.captures import run_info, wait_for
from harness.client import generate, generate_concurrently
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from harness.tiny_mistral import build_tiny_mistral
from harness.tiny_sparse import GLM, INDEXED_TOKENS, V32, build_tiny_sparse
from harness.tiny_v3 import build_tiny_kimi, build_tiny_v3

LAYERS = [-1, 0, 3, 6]
LENGTHS = [1, 16, 17, 70]


@pytest.fixture(scope="module")
def deepseek_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek-V3: low-rank query, grouped routing by sigmoids."""
    return build_tiny_v3(tmp_path_factory.mktemp("model") / "v3")


@pytest.fixture(scope="module")
def kimi(deepseek_v3: Path) -> Path:
    """A Kimi-K2.5 with that DeepSeek-V3 as its language model."""
    return build_tiny_kimi(deepseek_v3.with_name("kimi"), deepseek_v3)


@pytest.fixture(scope="module")
def v3_reference(deepseek_v3: Path) -> Reference:
    """Transformers with the weights of that DeepSeek-V3."""
    return Reference(deepseek_v3)


def assert_exact_captures(
    serve: Serve,
    zygote: Zygote,
    model: Path,
    dump_dir: Path,
    reference: Reference,
    chunk: int = 16,
    **more: str,
) -> None:
    """Serve `model`, send prompts alone and at once, compare every row with transformers."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        **more,
    }
    prompts = {f"alone-{length}": prompt(length, length) for length in LENGTHS}
    at_once = {f"at-once-{i}": prompt(100 + i, 5 + 3 * i) for i in range(6)}
    with serve(zygote, ServerConfig(model, environment, chunk)) as server:
        for rid, tokens in prompts.items():
            answer = generate(server.url, tokens, rid, max_new_tokens=2)
            assert answer["output_ids"][0] == reference.next_token(tokens)
        generate_concurrently(server.url, at_once.items(), at_once=6, max_new_tokens=3)
    prompts |= at_once
    store = wait_for(dump_dir, prompts)
    assert len(store) == len(prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, LAYERS)


def test_deepseek_v3_is_exact(
    serve: Serve, zygote: Zygote, deepseek_v3: Path, tmp_path: Path, v3_reference: Reference
) -> None:
    """Every row of a DeepSeek-V3 equals transformers."""
    assert_exact_captures(serve, zygote, deepseek_v3, tmp_path / "dump", v3_reference)
    assert run_info(tmp_path / "dump")["model_class"] == "DeepseekV3ForCausalLM"


def test_kimi_k25_is_exact(
    serve: Serve, zygote: Zygote, kimi: Path, tmp_path: Path, v3_reference: Reference
) -> None:
    """So does every row of the language model inside a Kimi-K2.5, which is given embeddings."""
    dump_dir, stand_in = tmp_path / "dump", {"HS_TEST_STAND_INS": "text_only"}
    assert_exact_captures(serve, zygote, kimi, dump_dir, v3_reference, **stand_in)
    assert run_info(tmp_path / "dump")["model_class"] == "DeepseekV3ForCausalLM"


def test_mistral_large_3_is_exact(
    serve: Serve, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """And of a Mistral Large 3 in Mistral's own format, whose states are those of a DeepSeek-V2."""
    mistral, same = build_tiny_mistral(tmp_path_factory.mktemp("model"))
    dump_dir, stand_in = tmp_path / "dump", {"HS_TEST_STAND_INS": "mistral_float32"}
    assert_exact_captures(serve, zygote, mistral, dump_dir, Reference(same), **stand_in)
    assert run_info(dump_dir)["model_class"] == "MistralLarge3ForCausalLM"


@pytest.mark.parametrize("config", [V32, GLM], ids=lambda config: config["model_type"])
def test_sparse_attention_is_exact(
    serve: Serve,
    zygote: Zygote,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    config: dict[str, Any],
) -> None:
    """And of a DeepSeek-V3.2 and a GLM, with prompts whose tokens look at all before them."""
    # SGLang has pages of this many tokens for them, and chunks of whole pages.
    page = 64
    assert page < max(LENGTHS) < INDEXED_TOKENS
    model = build_tiny_sparse(tmp_path_factory.mktemp("model") / "sparse", config)
    dump_dir, stand_in = tmp_path / "dump", {"HS_TEST_STAND_INS": "sparse_attention"}
    assert_exact_captures(serve, zygote, model, dump_dir, Reference(model), page, **stand_in)
    assert run_info(dump_dir)["model_class"] == config["architectures"][0]
