"""Data-parallel attention: SGLang gathers the rows of all ranks with operators made for CUDA.

It knows how to do without them on a CPU, but takes for one only a machine with its own CPU kernels.
So its switches are turned by hand. They are read when a batch runs.
"""

from __future__ import annotations

from sglang.srt.distributed import parallel_state
from sglang.srt.layers import dp_attention
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.model_executor import forward_batch_info

parallel_state._is_cpu = True
forward_batch_info._is_cpu = True
dp_attention.memcpy_func = dp_attention.memcpy_cpu


def sequence_length_of_padding(backend: object) -> int:
    """Return the length of the sequences that fill up a batch."""
    return 1


for _name in ("get_cuda_graph_seq_len_fill_value", "get_cpu_graph_seq_len_fill_value"):
    setattr(TorchNativeAttnBackend, _name, sequence_length_of_padding)
