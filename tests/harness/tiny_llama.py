"""A Llama small enough for any machine; SGLang makes up the weights (``--load-format dummy``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.tiny_model import VOCAB

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float32",
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
ARGUMENTS = ("--load-format", "dummy")
"""With which a server needs no weights."""


def build_tiny_llama(path: Path) -> Path:
    """Write ``config.json`` to ``path`` and return it."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(CONFIG, indent=1))
    return path
