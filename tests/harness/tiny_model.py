"""A DeepSeek-V2 small enough for any machine, with random weights, in the Hugging Face format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAYERS = 8
HIDDEN = 128
VOCAB = 1024

# The keys are the ones of the published models. Every transformers reads them.
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "torch_dtype": "float32",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.02,
    "use_cache": True,
    "pretraining_tp": 1,
    # multi-head latent attention, without the low-rank query
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
    # one dense layer, then mixtures of experts
    "intermediate_size": 256,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "topk_group": 1,
    "n_group": 1,
    "routed_scaling_factor": 1.0,
}


def build_tiny_model(path: Path, seed: int = 0, **changes: Any) -> Path:
    """Write ``config.json`` and the weights of this seed to ``path``, and return it.

    ``changes`` are keys of the configuration with other values, such as the dtype of the weights,
    which is float32. A folder that already holds the
    finished model of this configuration is left as it is.
    """
    config = {**CONFIG, **changes}
    stamp = path / "built.json"
    wanted = json.dumps({"config": config, "seed": seed}, sort_keys=True)
    if stamp.is_file() and stamp.read_text() == wanted:
        return path

    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    generator = torch.Generator().manual_seed(seed)
    model = DeepseekV2ForCausalLM(DeepseekV2Config(**json.loads(json.dumps(config)))).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # Norm weights that differ from one, or a forgotten norm would not show.
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.08 * noise)
    path.mkdir(parents=True, exist_ok=True)
    model.to(getattr(torch, config["torch_dtype"])).save_pretrained(path)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    stamp.write_text(wanted)
    return path
