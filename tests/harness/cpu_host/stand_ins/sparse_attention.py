"""Models with sparse attention, whose indexer and attention are kernels made for CUDA.

The indexer chooses all tokens of a prompt that is no longer than its ``index_topk``. So for such
prompts the dense attention of other backends computes the same, and the indexer has nothing to say.
SGLang chooses a backend and the dtype of its cache by the GPU; here is none, and nothing to choose.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.arg_groups import model_hook
from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer


def some_capability(device: object = None) -> tuple[int, int]:
    """Return the number of a GPU that would run these models; it is asked for, and left unused."""
    return (9, 0)


def nothing_to_choose(view: object) -> dict[str, Any]:
    """Leave the settings as they are."""
    return {}


def nothing_to_leave_out(self: object, **arguments: object) -> None:
    """Choose no tokens, by which backends understand all."""


torch.cuda.get_device_capability = some_capability
model_hook._dsa_kv_cache_dtype_default = nothing_to_choose
model_hook._dsa_split_backend_resolution = nothing_to_choose
Indexer.forward = nothing_to_leave_out
