"""Tiny models of other families than DeepSeek's, with random float32 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.tiny_model import VOCAB
from harness.tiny_v3 import write_random_model

LAYERS = 8
SLIDING_WINDOW = 12

_DENSE: dict[str, Any] = {
    "torch_dtype": "float32",
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    # Two heads share one key and value.
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA: dict[str, Any] = {
    **_DENSE,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "mlp_bias": False,
}
QWEN2: dict[str, Any] = {
    **_DENSE,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "use_sliding_window": False,
}
QWEN3: dict[str, Any] = {
    **_DENSE,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "use_sliding_window": False,
}
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
GLM4_MOE: dict[str, Any] = {
    **_DENSE,
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
}
GLM4_MOE_LITE: dict[str, Any] = {
    **{name: value for name, value in GLM4_MOE.items() if name != "partial_rotary_factor"},
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    # latent attention, as DeepSeek-V3 has it
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": 16,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
GPT_OSS: dict[str, Any] = {
    **_DENSE,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "intermediate_size": 64,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "swiglu_limit": 1.0,
    "sliding_window": SLIDING_WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 128,
    },
}


def build_tiny_family(path: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """Write the model of `config`, one of the above, to `path`, and return it."""
    return write_random_model(path, config, seed)
