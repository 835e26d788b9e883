"""A Llama is captured like the models of DeepSeek-V2's family."""

from __future__ import annotations

from pathlib import Path

from harness.captures import run_info
from harness.launching import Zygote
from harness.proof import prove
from harness.server import Serve, ServerConfig
from harness.tiny_families import LLAMA, build_tiny_family


def test_every_row_of_a_llama_is_exact(serve: Serve, zygote: Zygote, tmp_path: Path) -> None:
    """Every row equals transformers."""
    model = build_tiny_family(tmp_path / "llama", LLAMA)
    prove(serve, zygote, ServerConfig(model), tmp_path / "dump")
    assert run_info(tmp_path / "dump")["model_class"] == "LlamaForCausalLM"
