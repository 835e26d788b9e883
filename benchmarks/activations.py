"""Deterministic activations for benchmarks: shaped like a residual stream, not like white noise.

Student-t values with a scale a channel (log-normal), a scale a token, and a few outlier channels
sixty times as large, as large language models have them. bfloat16 as uint16.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OUTLIER_CHANNELS = 8
OUTLIER_SCALE = 60.0


def residual_stream(rows: int, width: int, seed: int = 0) -> NDArray[np.uint16]:
    """bfloat16 bits [rows, width]."""
    dice = np.random.default_rng(seed)
    values = dice.standard_t(5, (rows, width)).astype(np.float32)
    values *= dice.lognormal(0.0, 0.6, width).astype(np.float32)
    values *= dice.lognormal(0.0, 0.3, (rows, 1)).astype(np.float32)
    values[:, dice.choice(width, OUTLIER_CHANNELS, replace=False)] *= OUTLIER_SCALE
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def entropy_bound(bits: NDArray[np.uint16]) -> float:
    """The best ratio of a code that sees the two bytes of a value one by one, without context."""
    total = 0.0
    for plane in (bits & 0xFF, bits >> 8):
        counts = np.bincount(plane.ravel(), minlength=256).astype(np.float64)
        shares = counts[counts > 0] / counts.sum()
        total += float(-(shares * np.log2(shares)).sum())
    return 16.0 / total
