"""Models of other families than DeepSeek-V2's: each is exact, and its drafter is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import parallel
from harness.captures import run_info, status, wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.generated import assert_chat, chat
from harness.launching import INTERPRETED, Zygote
from harness.prompts import prompt
from harness.proof import LAYERS, prove
from harness.reference import Reference
from harness.refusals import refused_start
from harness.server import Serve, ServerConfig
from harness.tiny_families import (
    GLM4_MOE,
    GLM4_MOE_LITE,
    LLAMA,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    build_tiny_family,
)

DENSE = [QWEN2, QWEN3]
SPARSE = [QWEN3_MOE, GLM4_MOE, GLM4_MOE_LITE]


def model_type(config: dict[str, Any]) -> str:
    """Return the name of a test's model."""
    return str(config["model_type"])


@pytest.mark.parametrize("config", [*DENSE, *SPARSE], ids=model_type)
def test_every_row_is_exact(
    serve: Serve, zygote: Zygote, tmp_path: Path, config: dict[str, Any]
) -> None:
    """Every row equals transformers."""
    model = build_tiny_family(tmp_path / "tiny", config)
    prove(serve, zygote, ServerConfig(model), tmp_path / "dump")
    assert run_info(tmp_path / "dump")["model_class"] == config["architectures"][0]


@pytest.mark.parametrize("config", [LLAMA, *DENSE, *SPARSE], ids=model_type)
def test_the_turns_of_a_chat_are_whole(
    serve: Serve, zygote: Zygote, tmp_path: Path, config: dict[str, Any]
) -> None:
    """Generated tokens have their rows, and a turn has from others what the cache had."""
    model = build_tiny_family(tmp_path / "tiny", config)
    environment = {
        "SGLANG_HS_DUMP_DIR": str(tmp_path / "dump"),
        "SGLANG_HS_PHASES": "prefill,decode",
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
    }
    with serve(zygote, ServerConfig(model, environment)) as server:
        turns = chat(server.url, "chat", prompt(7, 30))
        store = wait_for(tmp_path / "dump", [turn.rid for turn in turns])
    assert [turn.cached > 0 for turn in turns] == [False, True, True, True]
    assert_chat(store, turns, Reference(model), LAYERS)


@pytest.mark.parametrize("config", [LLAMA, *DENSE, *SPARSE], ids=model_type)
def test_the_rows_of_two_ranks_are_whole(
    serve: Serve, zygote: Zygote, tmp_path: Path, config: dict[str, Any]
) -> None:
    """Each rank computes a part of every sum; what is captured is the sums."""
    model = build_tiny_family(tmp_path / "tiny", config)
    served = ServerConfig(model, parallel.ENVIRONMENT, arguments=["--tp-size", "2"])
    prove(serve, zygote, served, tmp_path / "dump")


@pytest.mark.parametrize("config", [LLAMA, QWEN3_MOE], ids=model_type)
def test_the_last_of_two_stages_is_captured(
    serve: Serve, zygote: Zygote, tmp_path: Path, config: dict[str, Any]
) -> None:
    """It begins with layer 4, so the output of layer 3 is the first that can be had."""
    model = build_tiny_family(tmp_path / "tiny", config)
    served = ServerConfig(model, parallel.ENVIRONMENT, arguments=["--pp-size", "2"])
    prove(serve, zygote, served, tmp_path / "dump", layers=[3, 4, 6])


def test_a_llama_that_drafts_for_a_llama_is_not_captured(
    serve: Serve, interpreting: Zygote, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """STANDALONE speculation: of two models of one class, the rows are those of the target.

    The drafter has other weights, so its states are other states.
    """
    folder = tmp_path_factory.mktemp("model")
    model = build_tiny_family(folder / "target", LLAMA)
    draft = build_tiny_family(folder / "draft", LLAMA, seed=1)
    layers = [-1, 1, 3, 6]
    environment = {
        **INTERPRETED,
        "HS_TEST_STAND_INS": "speculation",
        "SGLANG_HS_DUMP_DIR": str(tmp_path / "dump"),
        "SGLANG_HS_LAYERS": ",".join(map(str, layers)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
    }
    options = {
        "--attention-backend": "triton",
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": str(draft),
        "--speculative-num-steps": "1",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "2",
    }
    arguments = [text for option in options.items() for text in option]
    reference = Reference(model)
    prompts = {f"drafted-{length}": prompt(length, length) for length in (1, 18)}
    with serve(interpreting, ServerConfig(model, environment, arguments=arguments)) as server:
        for rid, tokens in prompts.items():
            answer = generate(server.url, tokens, rid, max_new_tokens=3, timeout=300)
            assert answer["output_ids"][0] == reference.next_token(tokens)
            assert "spec_accept_length" in answer["meta_info"]
        assert server.log().count("hs-capture 0") == 1
    store = wait_for(tmp_path / "dump", prompts)
    assert len(store) == len(prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, layers)
    assert status(tmp_path / "dump")["counters"]["hook_errors"] == 0


def test_a_llama_inside_of_another_model_is_refused(
    zygote: Zygote, tmp_path: Path, new_log: Callable[[], Path]
) -> None:
    """A multimodal model may compute with it in ways of its own."""
    enclosed = {**LLAMA, "architectures": ["EnclosedLlamaForCausalLM"]}
    config = ServerConfig(
        build_tiny_family(tmp_path / "enclosed", enclosed),
        {"SGLANG_HS_DUMP_DIR": str(tmp_path / "dump"), "SGLANG_HS_BUFFER": "16M"},
        arguments=["--load-format", "dummy"],
    )
    refused = refused_start(zygote, config, new_log())
    assert refused.exit_code != 0
    assert refused.line == (
        "hs-capture: the server does not start: EnclosedLlamaForCausalLM has a LlamaForCausalLM "
        "inside, which hs-capture captures only where it is served by itself; "
        "unset SGLANG_HS_DUMP_DIR to serve it"
    )
