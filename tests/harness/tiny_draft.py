"""Drafters for the tiny model, with random weights: EAGLE-3 and DFlash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.tiny_model import HIDDEN, VOCAB
from harness.tiny_model import LAYERS as TARGET_LAYERS

LAYERS = (1, 4, 6)
"""The layers of the target whose outputs they are given."""
_HEADS, _HEAD, _INNER = 4, 32, 256
_CONFIG: dict[str, Any] = {
    "torch_dtype": "float32",
    "hidden_size": HIDDEN,
    "intermediate_size": _INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _HEAD,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attention_bias": False,
}


def build_tiny_eagle3(path: Path) -> Path:
    """Write an EAGLE-3 drafter to ``path``: its configuration and its float32 weights."""
    import torch

    config: dict[str, Any] = {
        **_CONFIG,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "target_hidden_size": HIDDEN,
        "draft_vocab_size": VOCAB,
        "mlp_bias": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(LAYERS),
            "use_aux_hidden_state": True,
        },
    }
    shapes = {
        "embed_tokens": (VOCAB, HIDDEN),
        "lm_head": (VOCAB, HIDDEN),
        "fc": (HIDDEN, len(LAYERS) * HIDDEN),
        **_layer("midlayer", read=2 * HIDDEN),
    }
    layer_norms = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    norms = {"norm": HIDDEN, **{f"midlayer.{name}": HIDDEN for name in layer_norms}}
    vocabulary = {
        "d2t": torch.zeros(VOCAB, dtype=torch.int64),
        "t2d": torch.ones(VOCAB, dtype=torch.bool),
    }
    return _write(path, config, _random(shapes, norms) | vocabulary)


def build_tiny_dflash(path: Path, block: int) -> Path:
    """Write a DFlash drafter to ``path`` that guesses blocks of ``block`` tokens."""
    config: dict[str, Any] = {
        **_CONFIG,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_target_layers": TARGET_LAYERS,
        "block_size": block,
        "dflash_config": {"target_layer_ids": list(LAYERS), "mask_token_id": VOCAB - 1},
    }
    shapes = {"fc": (HIDDEN, len(LAYERS) * HIDDEN), **_layer("layers.0", read=HIDDEN)}
    norms = {
        "norm": HIDDEN,
        "hidden_norm": HIDDEN,
        "layers.0.input_layernorm": HIDDEN,
        "layers.0.post_attention_layernorm": HIDDEN,
        "layers.0.self_attn.q_norm": _HEAD,
        "layers.0.self_attn.k_norm": _HEAD,
    }
    return _write(path, config, _random(shapes, norms))


def _layer(name: str, read: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of a decoder layer whose attention reads states of width ``read``."""
    inside = _HEADS * _HEAD
    return {
        f"{name}.self_attn.q_proj": (inside, read),
        f"{name}.self_attn.k_proj": (inside, read),
        f"{name}.self_attn.v_proj": (inside, read),
        f"{name}.self_attn.o_proj": (HIDDEN, inside),
        f"{name}.mlp.gate_proj": (_INNER, HIDDEN),
        f"{name}.mlp.up_proj": (_INNER, HIDDEN),
        f"{name}.mlp.down_proj": (HIDDEN, _INNER),
    }


def _random(shapes: dict[str, tuple[int, int]], norms: dict[str, int]) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    weights = {
        f"{name}.weight": 0.05 * torch.randn(*shape, generator=generator)
        for name, shape in shapes.items()
    }
    return weights | {f"{name}.weight": torch.ones(width) for name, width in norms.items()}


def _write(path: Path, config: dict[str, Any], weights: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    save_file(weights, path / "model.safetensors")
    return path
