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

IMAGE_TOKEN = 1000
"""Stands in a Kimi-K2.5's prompt where an image comes, once for each of its tokens."""
IMAGE_WIDTH, IMAGE_INNER, IMAGE_LAYERS, IMAGE_GRID, IMAGE_PATCH = 64, 128, 2, 8, 14

KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "media_placeholder_token_id": IMAGE_TOKEN,
    "ignore_index": -100,
    "tie_word_embeddings": False,
    "text_config": {**CONFIG, "model_type": "kimi_k2"},
    "vision_config": {
        "patch_size": IMAGE_PATCH,
        "init_pos_emb_height": IMAGE_GRID,
        "init_pos_emb_width": IMAGE_GRID,
        "init_pos_emb_time": 4,
        "pos_emb_type": "divided_fixed",
        "num_attention_heads": 2,
        "num_hidden_layers": IMAGE_LAYERS,
        "hidden_size": IMAGE_WIDTH,
        "intermediate_size": IMAGE_INNER,
        "vt_num_attention_heads": 2,
        "vt_num_hidden_layers": IMAGE_LAYERS,
        "vt_hidden_size": IMAGE_WIDTH,
        "vt_intermediate_size": IMAGE_INNER,
        "merge_kernel_size": [2, 2],
        "video_attn_type": "spatial_temporal",
        "merge_type": "sd2_tpool",
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": IMAGE_WIDTH,
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-5,
        "text_hidden_size": CONFIG["hidden_size"],
    },
}


def build_tiny_v3(path: Path, seed: int = 0) -> Path:
    """Write the configuration and random float32 weights to ``path``, and return it."""
    return write_random_model(path, CONFIG, seed)


def write_random_model(path: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """Write a model that transformers knows with random float32 weights to ``path``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    generator = torch.Generator().manual_seed(seed)
    known = AutoConfig.for_model(**json.loads(json.dumps(config)))
    model = AutoModelForCausalLM.from_config(known, dtype=torch.float32)
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in values.items():
            if name.endswith("inv_freq"):
                continue
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("sinks"):
                # As large as the scores they stand beside, and SGLang keeps them in bfloat16.
                value.copy_(noise.bfloat16())
                continue
            value.copy_(1 + 0.1 * noise if "norm" in name else 0.08 * noise)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    return path


def build_tiny_kimi(path: Path, language_model: Path) -> Path:
    """Write a Kimi-K2.5 to ``path`` with the weights of a model by ``build_tiny_v3``.

    What looks at its images has random weights.
    """
    from safetensors.torch import load_file, save_file

    weights: dict[str, Any] = {}
    for file in language_model.glob("*.safetensors"):
        weights |= load_file(file)
    weights = {f"language_model.{name}": value for name, value in weights.items()}
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights | _image_weights(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(KIMI, indent=1))
    return path


def _image_weights() -> dict[str, Any]:
    import torch

    width, inner = IMAGE_WIDTH, IMAGE_INNER
    merged = 4 * width
    linear = {
        "vision_tower.patch_embed.proj": (width, 3, IMAGE_PATCH, IMAGE_PATCH),
        "mm_projector.proj.0": (merged, merged),
        "mm_projector.proj.2": (CONFIG["hidden_size"], merged),
    }
    norms = ["vision_tower.encoder.final_layernorm", "mm_projector.pre_norm"]
    for layer in range(IMAGE_LAYERS):
        block = f"vision_tower.encoder.blocks.{layer}"
        norms += [f"{block}.norm0", f"{block}.norm1"]
        linear |= {
            f"{block}.wqkv": (3 * width, width),
            f"{block}.wo": (width, width),
            f"{block}.mlp.fc0": (inner, width),
            f"{block}.mlp.fc1": (width, inner),
        }
    generator = torch.Generator().manual_seed(2)

    def noise(*shape: int) -> Any:
        return 0.08 * torch.randn(*shape, generator=generator)

    weights = {
        "vision_tower.patch_embed.pos_emb.weight": noise(IMAGE_GRID, IMAGE_GRID, width),
    }
    for name, shape in linear.items():
        weights |= {f"{name}.weight": noise(*shape), f"{name}.bias": noise(shape[0])}
    for name in norms:
        weights |= {f"{name}.weight": 1 + noise(width), f"{name}.bias": noise(width)}
    return weights
