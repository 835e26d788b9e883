"""The one vLLM operator that SGLang calls when it runs on hardware it does not know."""

from __future__ import annotations

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate ``query`` and ``key`` in place, as vLLM's operator of this name does.

    Shapes: ``positions`` [T], ``query`` and ``key`` [T, heads * head_size] or
    [T, heads, head_size], ``cos_sin_cache`` [positions, rotary width] with the cosines in its
    first half. The arithmetic is in float32 whatever the dtype of the tensors.
    """
    width = cos_sin_cache.shape[-1]
    angles = cos_sin_cache.index_select(0, positions.flatten()).float().unsqueeze(1)
    cos, sin = angles.split(width // 2, dim=-1)
    for states in (query, key):
        if states is None:
            continue
        rotary = states.view(positions.numel(), -1, head_size)[..., :width]
        if is_neox:
            first, second = rotary[..., : width // 2], rotary[..., width // 2 :]
        else:
            first, second = rotary[..., 0::2], rotary[..., 1::2]
        a, b = first.float(), second.float()
        first.copy_(a * cos - b * sin)
        second.copy_(b * cos + a * sin)
