"""From pre-norm final states to post-norm ones, as the engine's final RMSNorm makes them."""

from __future__ import annotations

import torch

from hs_capture.format.run import NormWeight
from hs_capture.tensors import to_tensor


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension, computed in float32 and cast back to `hidden.dtype`.

    `hidden` is [..., H], `weight` is [H]; both of any floating dtype.
    """
    exact = hidden.to(torch.float32)
    scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return (exact * scale * weight.to(torch.float32)).to(hidden.dtype)


def apply_norm(hidden: torch.Tensor, norm: NormWeight) -> torch.Tensor:
    """The post-norm states [T, H] of pre-norm states [T, H], with the norm that run.json holds.

    A float32 run gives the engine's values up to rounding. In bfloat16 they may differ from the
    engine's by about one unit in the last place, because the engine norms the sum before it is
    rounded.
    """
    return rms_norm(hidden, to_tensor(norm.weight(), norm.dtype), norm.eps)
