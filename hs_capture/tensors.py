"""Carrier arrays of the format as torch tensors of the real element type."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# torch.from_numpy takes these everywhere; unsigned carriers wider than a byte it learnt late.
_SIGNED = {2: np.int16, 4: np.int32, 8: np.int64}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called `name`; `TypeError` when this torch does not have it."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype


def to_tensor(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """`array`, in the carrier type of `dtype`, as a tensor of `dtype` and the same shape.

    The bits stay as they are. A writable array shares its memory with the tensor; a read-only one
    is copied.
    """
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.kind == "u" and array.itemsize in _SIGNED:
        array = array.view(_SIGNED[array.itemsize])
    return torch.from_numpy(array).view(torch_dtype(dtype))
