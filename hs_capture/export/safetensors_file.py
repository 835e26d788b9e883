"""Writing a safetensors file: a length, a JSON header, the tensors' bytes.

By hand, since the format is this small and the library orders the header anew each time: here one
content is one sequence of bytes, so exports can be compared by their checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import orjson
import torch

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
}
_ALIGNMENT = 8


def save(path: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write `tensors`, in their order, with `metadata` to a new file.

    Raises `OSError` when the file cannot be written, `TypeError` for a dtype the format lacks.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise TypeError(f"tensor {name!r}: safetensors has no dtype for {tensor.dtype}")
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = orjson.dumps(header)
    head += b" " * (-len(head) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)))
        file.write(head)
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)
