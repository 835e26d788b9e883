"""A tiny Mistral Large 3 and a drafter for it, in Mistral's own format, with random weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from harness.tiny_model import CONFIG as V2
from harness.tiny_model import HIDDEN, build_tiny_model

# Mistral's names of weights, by the names of a DeepSeek-V2 in the Hugging Face format.
_NAMES = {
    r"model\.embed_tokens\.": "tok_embeddings.",
    r"model\.norm\.": "norm.",
    r"lm_head\.": "output.",
    r"model\.layers\.": "layers.",
    r"\.input_layernorm\.": ".attention_norm.",
    r"\.post_attention_layernorm\.": ".ffn_norm.",
    r"\.self_attn\.q_proj\.": ".attention.wq.",
    r"\.self_attn\.kv_a_proj_with_mqa\.": ".attention.wkv_a_with_mqa.",
    r"\.self_attn\.kv_a_layernorm\.": ".attention.kv_a_norm.",
    r"\.self_attn\.kv_b_proj\.": ".attention.wkv_b.",
    r"\.self_attn\.o_proj\.": ".attention.wo.",
    r"\.mlp\.gate\.": ".gate.",
    r"\.mlp\.experts\.": ".experts.",
    r"\.mlp\.shared_experts\.": ".shared_experts.",
    r"\.mlp\.": ".feed_forward.",
    r"\.gate_proj\.": ".w1.",
    r"\.down_proj\.": ".w2.",
    r"\.up_proj\.": ".w3.",
}

_ATTENTION: dict[str, Any] = {
    "dim": V2["hidden_size"],
    "vocab_size": V2["vocab_size"],
    "max_position_embeddings": V2["max_position_embeddings"],
    "norm_eps": V2["rms_norm_eps"],
    "n_heads": V2["num_attention_heads"],
    "n_kv_heads": V2["num_key_value_heads"],
    "head_dim": V2["qk_nope_head_dim"] + V2["qk_rope_head_dim"],
    "q_lora_rank": None,
    "kv_lora_rank": V2["kv_lora_rank"],
    "qk_nope_head_dim": V2["qk_nope_head_dim"],
    "qk_rope_head_dim": V2["qk_rope_head_dim"],
    "v_head_dim": V2["v_head_dim"],
    "rope_theta": float(V2["rope_theta"]),
    "hidden_dim": V2["intermediate_size"],
    "yarn": {
        "factor": V2["rope_scaling"]["factor"],
        "original_max_position_embeddings": V2["max_position_embeddings"],
        "alpha": V2["rope_scaling"]["beta_slow"],
        "beta": V2["rope_scaling"]["beta_fast"],
    },
    # The factor is one for positions up to this many.
    "llama_4_scaling": {"original_max_position_embeddings": 4096, "beta": 0.1},
}
_EXPERTS: dict[str, Any] = {
    "route_every_n": V2["moe_layer_freq"],
    "first_k_dense_replace": V2["first_k_dense_replace"],
    "num_experts": V2["n_routed_experts"],
    "num_experts_per_tok": V2["num_experts_per_tok"],
    "num_shared_experts": V2["n_shared_experts"],
    "num_expert_groups": V2["n_group"],
    "num_expert_groups_per_tok": V2["topk_group"],
    "expert_hidden_dim": V2["moe_intermediate_size"],
    "routed_scale": V2["routed_scaling_factor"],
}


def build_tiny_mistral(folder: Path) -> tuple[Path, Path]:
    """Write one model in two formats below `folder`: Mistral's, and that of a DeepSeek-V2.

    The second is what transformers can read. Returns both paths. SGLang knows the format by the
    name of the folder.
    """
    rope = {**V2["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0}
    same = build_tiny_model(folder / "deepseek", rope_scaling=rope)
    path = folder / "tiny-mistral-large-3"
    params = {
        **_ATTENTION,
        "n_layers": V2["num_hidden_layers"],
        "norm_topk_prob": V2["norm_topk_prob"],
        "moe": _EXPERTS,
    }
    _write(path, params, _renamed(_weights(same)))
    return path, same


def build_tiny_eagle(path: Path, model: Path) -> Path:
    """Write a drafter of one dense layer to `path`, whose name must have eagle and mistral in it.

    Its layer is the first of `model`, a DeepSeek-V2.
    """
    import torch

    weights = {
        name: value
        for name, value in _renamed(_weights(model)).items()
        if name.startswith(("layers.0.", "norm."))
    }
    generator = torch.Generator().manual_seed(1)
    weights["eagle_linear.weight"] = 0.08 * torch.randn(HIDDEN, 2 * HIDDEN, generator=generator)
    _write(path, {**_ATTENTION, "n_layers": 1}, weights)
    return path


def _weights(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for file in model.glob("*.safetensors"):
        found |= load_file(file)
    return found


def _renamed(weights: dict[str, Any]) -> dict[str, Any]:
    renamed = {}
    for name, value in weights.items():
        new = name
        for theirs, mistral in _NAMES.items():
            new = re.sub(theirs, mistral, new)
        renamed[new] = value
    return renamed


def _write(path: Path, params: dict[str, Any], weights: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "params.json").write_text(json.dumps(params, indent=1))
    save_file(weights, path / "consolidated.safetensors")
