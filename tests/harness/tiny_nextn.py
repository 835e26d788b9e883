"""A tiny DeepSeek-V3 whose checkpoint also holds a layer that drafts (NextN, MTP)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.tiny_model import HIDDEN
from harness.tiny_v3 import CONFIG

_LAST = CONFIG["num_hidden_layers"] - 1
_DRAFT = CONFIG["num_hidden_layers"]


def build_tiny_nextn(path: Path, model: Path) -> Path:
    """Write a model by ``build_tiny_v3`` to ``path``, with one more layer: a copy of its last.

    In front of that layer are two norms and a projection of embedding and state, behind it the
    head of the model. That is how the published DeepSeek-V3 has it.
    """
    import torch
    from safetensors.torch import load_file, save_file

    weights: dict[str, Any] = {}
    for file in model.glob("*.safetensors"):
        weights |= load_file(file)
    drafting = {
        name.replace(f"layers.{_LAST}.", f"layers.{_DRAFT}."): value.clone()
        for name, value in weights.items()
        if f"layers.{_LAST}." in name
    }
    own = {
        "embed_tokens.weight": weights["model.embed_tokens.weight"].clone(),
        "shared_head.head.weight": weights["lm_head.weight"].clone(),
        "shared_head.norm.weight": torch.ones(HIDDEN),
        "enorm.weight": torch.ones(HIDDEN),
        "hnorm.weight": torch.ones(HIDDEN),
        "eh_proj.weight": 0.08
        * torch.randn(HIDDEN, 2 * HIDDEN, generator=torch.Generator().manual_seed(1)),
    }
    drafting |= {f"model.layers.{_DRAFT}.{name}": value for name, value in own.items()}
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights | drafting, path / "model.safetensors")
    config = {**CONFIG, "num_nextn_predict_layers": 1}
    (path / "config.json").write_text(json.dumps(config, indent=1))
    return path
