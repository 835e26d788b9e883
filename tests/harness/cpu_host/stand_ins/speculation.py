"""Speculative decoding: the trees of drafted tokens are built by kernels made for CUDA.

Their Triton versions, which SGLang has for other hardware, run in Triton's interpreter.
"""

from __future__ import annotations

from sglang.kernels.ops.speculative import spec_tree

spec_tree._is_xpu = True
