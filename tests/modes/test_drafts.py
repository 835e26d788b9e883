"""Drafters of the served model's own family: nothing of what they compute is captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.captures import status, wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import INTERPRETED, Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from harness.tiny_mistral import build_tiny_eagle, build_tiny_mistral
from harness.tiny_nextn import build_tiny_nextn
from harness.tiny_v3 import build_tiny_v3

LAYERS = [-1, 1, 3, 6]
LENGTHS = [1, 18]


def assert_only_the_target_is_captured(
    serve: Serve, launcher: Zygote, config: ServerConfig, dump_dir: Path, reference: Reference
) -> None:
    """Serve with a drafter: the prompts' rows alone are captured, and they are exact."""
    environment = {
        **INTERPRETED,
        "HS_TEST_STAND_INS": "speculation",
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        **config.environment,
    }
    arguments = [
        *("--attention-backend", "triton"),
        *("--speculative-num-steps", "1"),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "2"),
        *config.arguments,
    ]
    served = ServerConfig(config.model, environment, arguments=arguments)
    with serve(launcher, served) as server:
        for length in LENGTHS:
            tokens = prompt(length, length)
            answer = generate(server.url, tokens, f"rid-{length}", max_new_tokens=3, timeout=300)
            assert answer["output_ids"][0] == reference.next_token(tokens)
            assert "spec_accept_length" in answer["meta_info"]
        assert server.log().count("hs-capture 0") == 1
    store = wait_for(dump_dir, [f"rid-{length}" for length in LENGTHS])
    assert len(store) == len(LENGTHS)
    for length in LENGTHS:
        assert_exact(store[f"rid-{length}"], prompt(length, length), reference, LAYERS)
    assert status(dump_dir)["counters"]["hook_errors"] == 0


def test_nextn_is_not_captured(serve: Serve, interpreting: Zygote, tmp_path: Path) -> None:
    """A DeepSeek-V3 drafts with the NextN layer of its own checkpoint."""
    model = build_tiny_v3(tmp_path / "v3")
    config = ServerConfig(
        build_tiny_nextn(tmp_path / "nextn", model),
        arguments=["--speculative-algorithm", "NEXTN"],
    )
    dump_dir = tmp_path / "dump"
    assert_only_the_target_is_captured(serve, interpreting, config, dump_dir, Reference(model))


def test_the_drafter_of_mistral_large_3_is_not_captured(
    serve: Serve,
    interpreting: Zygote,
    tmp_path_factory: pytest.TempPathFactory,
    dump_dir: Path,
) -> None:
    """It is built by the class of its target, and computes with the same layers."""
    # SGLang takes what has "eagle" in its path for a drafter: this folder must not.
    folder = tmp_path_factory.mktemp("model")
    model, same = build_tiny_mistral(folder)
    draft = build_tiny_eagle(folder / "tiny-mistral-eagle", same)
    config = ServerConfig(
        model,
        {"HS_TEST_STAND_INS": "speculation,mistral_float32"},
        arguments=[
            *("--speculative-algorithm", "EAGLE"),
            *("--speculative-draft-model-path", str(draft)),
        ],
    )
    assert_only_the_target_is_captured(serve, interpreting, config, dump_dir, Reference(same))
