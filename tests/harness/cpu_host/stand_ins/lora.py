"""LoRA layers keep small tables in pinned memory, which there is none of without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return make(*args, **kwargs)

    return made


for _name in ("tensor", "empty", "zeros", "ones"):
    setattr(torch, _name, _unpinned(getattr(torch, _name)))


def pin_memory(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    """Return the tensor as it is."""
    return tensor


torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign]
