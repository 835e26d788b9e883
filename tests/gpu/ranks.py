"""Capture of a model that several GPUs serve, against capture on one: same weights, same prompts.

    PYTHONPATH=tests python tests/gpu/ranks.py

Run by hand on a machine with two GPUs; no part of `make test`. The model has random weights and the
dimensions of DeepSeek-V2-Lite, but six layers, sixteen experts and few words. See `engines.py` for
what is compared.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from engines import run_modes

from harness.tiny_model import CONFIG as TINY

LAYERS = "-1,0,2,4"
WEIGHTS = {"load_format": "auto"}
EAGER = {**WEIGHTS, "disable_cuda_graph": True}
TWO = {**WEIGHTS, "tp_size": 2, "disable_custom_all_reduce": True}
MODES: dict[str, dict[str, Any]] = {
    "one rank": EAGER,
    "tensor parallel": {**EAGER, **TWO},
    "tensor parallel, decode graphs": {
        **TWO,
        "cuda_graph_backend_prefill": "disabled",
        "cuda_graph_max_bs_decode": 8,
    },
    "attention data parallel": {**EAGER, **TWO, "dp_size": 2, "enable_dp_attention": True},
    "data parallel": {**EAGER, "dp_size": 2},
}
CONFIG: dict[str, Any] = {
    **TINY,
    "torch_dtype": "bfloat16",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "max_position_embeddings": 16384,
}


def build_model(path: Path) -> None:
    """Write the model, 4 GB, to the folder `path`."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(**copy.deepcopy(CONFIG))
    dice = torch.Generator("cuda").manual_seed(1)
    with torch.device("cuda"), torch.no_grad():
        model = DeepseekV2ForCausalLM(config).bfloat16()
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=dice)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.02 * noise)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(CONFIG))


def main() -> int:
    """Run every mode and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", default=";".join(MODES), help="separated by semicolons")
    options = parser.parse_args()
    chosen = {mode: MODES[mode] for mode in options.modes.split(";")}
    with tempfile.TemporaryDirectory(prefix="hs-model-", dir="/dev/shm") as folder:
        build_model(Path(folder))
        return 0 if run_modes(folder, LAYERS, chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
