"""Values are judged exactly as torch judges them, for every bit pattern of the small types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hs_capture.format.codec import dtype_of
from hs_capture.numbers import any_nonzero, count_not_finite

SMALL = [
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
]


@pytest.mark.parametrize("name", SMALL)
def test_every_bit_pattern_is_judged_like_torch_does(name: str) -> None:
    dtype = dtype_of(name)
    bits = np.arange(256**dtype.itemsize).astype(f"<u{dtype.itemsize}")
    values = torch.from_numpy(bits.copy()).view(getattr(torch, name)).float()
    finite, nonzero = torch.isfinite(values).numpy(), (values != 0).numpy()
    carried = bits.view(dtype.carrier)
    assert count_not_finite(carried[finite], name) == 0
    assert count_not_finite(carried[~finite], name) == np.count_nonzero(~finite) > 0
    assert not any_nonzero(carried[~nonzero], name)
    for position in range(0, len(bits), len(bits) // 256):
        assert any_nonzero(carried[position : position + 1], name) == nonzero[position]


@pytest.mark.parametrize(("name", "carrier"), [("float32", "<f4"), ("float64", "<f8")])
def test_the_large_types(name: str, carrier: str) -> None:
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1.0]).astype(carrier)
    assert count_not_finite(values, name) == 3
    assert not any_nonzero(values[:2], name)
    assert any_nonzero(values[5:6], name)
    assert any_nonzero(values[2:3], name)


def test_integers_are_always_finite() -> None:
    values = np.array([0, -1, 2**62], dtype="<i8")
    assert count_not_finite(values, "int64") == 0
    assert any_nonzero(values, "int64")
    assert not any_nonzero(values[:1], "int64")
