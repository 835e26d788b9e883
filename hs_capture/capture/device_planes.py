"""Split the bytes of two-byte elements on a GPU, in one pass (Triton)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Elements that one program of the kernel takes."""


@triton.jit  # type: ignore[untyped-decorator]
def _split(source, low, high, stride, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    element = tl.load(source + row * stride + column, mask=inside)
    target = row * width + column
    tl.store(low + target, (element & 0xFF).to(tl.uint8), mask=inside)
    tl.store(high + target, ((element >> 8) & 0xFF).to(tl.uint8), mask=inside)


def split_pairs(rows: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
    """Write the low and the high bytes of `rows`, int16 [rows, width], to uint8 [rows, width].

    The elements of a row lie side by side, rows may be further apart; `low` and `high` are dense.
    """
    count, width = rows.shape
    grid = (count, triton.cdiv(width, BLOCK))
    _split[grid](rows, low, high, rows.stride(0), width, block=BLOCK)
