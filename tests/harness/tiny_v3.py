"""A tiny DeepSeek-V3, and the same model as the language model of a Kimi-K2.5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.tiny_model import CONFIG as V2

CONFIG: dict[str, Any] = {
    **V2,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    # a low-rank query, and experts chosen from the best groups by sigmoids with a bias
    "q_lora_rank": 48,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
}

KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "media_placeholder_token_id": 1000,
    "ignore_index": -100,
    "tie_word_embeddings": False,
    "text_config": {**CONFIG, "model_type": "kimi_k2"},
    "vision_config": {
        "patch_size": 14,
        "init_pos_emb_height": 8,
        "init_pos_emb_width": 8,
        "init_pos_emb_time": 4,
        "pos_emb_type": "divided_fixed",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "vt_num_attention_heads": 2,
        "vt_num_hidden_layers": 2,
        "vt_hidden_size": 64,
        "vt_intermediate_size": 128,
        "merge_kernel_size": [2, 2],
        "video_attn_type": "spatial_temporal",
        "merge_type": "sd2_tpool",
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": 64,
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-5,
        "text_hidden_size": CONFIG["hidden_size"],
    },
}


def build_tiny_v3(path: Path, seed: int = 0) -> Path:
    """Write the configuration and random float32 weights to ``path``, and return it."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    generator = torch.Generator().manual_seed(seed)
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**json.loads(json.dumps(CONFIG)))).float()
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in values.items():
            if name.endswith("inv_freq"):
                continue
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(1 + 0.1 * noise if "norm" in name else 0.08 * noise)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(CONFIG, indent=1))
    return path


def build_tiny_kimi(path: Path, language_model: Path) -> Path:
    """Write a Kimi-K2.5 to ``path`` with the weights of a model by ``build_tiny_v3``.

    It has no weights for images; they are never looked at where none are sent.
    """
    from safetensors.torch import load_file, save_file

    weights: dict[str, Any] = {}
    for file in language_model.glob("*.safetensors"):
        weights |= load_file(file)
    path.mkdir(parents=True, exist_ok=True)
    save_file(
        {f"language_model.{name}": value for name, value in weights.items()},
        path / "model.safetensors",
    )
    (path / "config.json").write_text(json.dumps(KIMI, indent=1))
    return path
