"""Tiny models with sparse attention: a DeepSeek-V3.2 and a GLM, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.tiny_v3 import CONFIG as V3
from harness.tiny_v3 import write_random_model

# Of a longer prompt each token would look at these many tokens only.
INDEXED_TOKENS = 2048

_INDEXER: dict[str, Any] = {
    "index_topk": INDEXED_TOKENS,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "pad_token_id": 0,
}
V32: dict[str, Any] = {
    **V3,
    **_INDEXER,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
}
GLM: dict[str, Any] = {
    **V3,
    **_INDEXER,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "n_group": 1,
    "topk_group": 1,
    # Plain rotary embeddings, in the words that SGLang has for them on a CPU.
    "rope_scaling": {**V3["rope_scaling"], "factor": 1.0},
}


def build_tiny_sparse(path: Path, config: dict[str, Any]) -> Path:
    """Write the model of `config`, one of the two above, to `path`, and return it."""
    return write_random_model(path, config)
