"""Speculative decoding on a CPU, which SGLang does on GPUs.

The kernels that build trees of drafted tokens, and find their places in the cache, are made for
CUDA; their Triton versions, which SGLang has for other hardware, run in Triton's interpreter.
DFLASH is refused on a CPU, though it has ways to do without a GPU: it is told that it may run.
Streams of work there are none, and so nothing that must wait for another. And SGLang gives a
drafter its embeddings in bfloat16 whatever it computes in: they stay in float32, in which the
target can be compared with transformers.
"""

from __future__ import annotations

import torch
from sglang.kernels.ops.speculative import cache_locs, spec_tree
from sglang.srt.arg_groups import speculative_hook

cache_locs._is_xpu = spec_tree._is_xpu = True


def nothing_to_wait_for(*arguments: object) -> None:
    """Return at once."""


torch.cuda.synchronize = nothing_to_wait_for
torch.Tensor.record_stream = nothing_to_wait_for


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor."""
    return tensor


torch.Tensor.bfloat16 = as_it_is


class WillingPlatform:
    """What SGLang asks a platform from elsewhere before it drafts on it."""

    def is_out_of_tree(self) -> bool:
        """Say that SGLang does not know it."""
        return True

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        """Take every algorithm."""
        return True

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        """Take every backend."""
        return True


speculative_hook.current_platform = WillingPlatform()
