"""An EAGLE-3 drafter for the tiny model, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.tiny_model import HIDDEN, VOCAB

LAYERS = (1, 4, 6)
"""The layers of the target whose outputs it is given."""
_HEADS, _HEAD, _INNER = 4, 32, 256


def build_tiny_draft(path: Path) -> Path:
    """Write its configuration and its float32 weights to ``path``, and return it."""
    import torch
    from safetensors.torch import save_file

    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HEAD,
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_bias": False,
        "mlp_bias": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(LAYERS),
            "use_aux_hidden_state": True,
        },
    }
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "embed_tokens": (VOCAB, HIDDEN),
        "lm_head": (VOCAB, HIDDEN),
        "fc": (HIDDEN, len(LAYERS) * HIDDEN),
        "midlayer.self_attn.q_proj": (_HEADS * _HEAD, 2 * HIDDEN),
        "midlayer.self_attn.k_proj": (_HEADS * _HEAD, 2 * HIDDEN),
        "midlayer.self_attn.v_proj": (_HEADS * _HEAD, 2 * HIDDEN),
        "midlayer.self_attn.o_proj": (HIDDEN, _HEADS * _HEAD),
        "midlayer.mlp.gate_proj": (_INNER, HIDDEN),
        "midlayer.mlp.up_proj": (_INNER, HIDDEN),
        "midlayer.mlp.down_proj": (HIDDEN, _INNER),
    }
    norms = ["norm", "input_layernorm", "hidden_norm", "post_attention_layernorm"]
    weights = {
        f"{name}.weight": 0.05 * torch.randn(*shape, generator=generator)
        for name, shape in shapes.items()
    }
    for name in norms:
        place = name if name == "norm" else f"midlayer.{name}"
        weights[f"{place}.weight"] = torch.ones(HIDDEN)
    weights["d2t"] = torch.zeros(VOCAB, dtype=torch.int64)
    weights["t2d"] = torch.ones(VOCAB, dtype=torch.bool)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    save_file(weights, path / "model.safetensors")
    return path
