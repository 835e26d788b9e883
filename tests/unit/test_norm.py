"""Post-norm states are derived as the model's own RMSNorm makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capture_files import norm_weight
from hs_capture.format.run import NormWeight
from hs_capture.norm import apply_norm, rms_norm


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def test_the_formula_on_numbers_a_person_can_check() -> None:
    """Mean square of (3, 4) is 12.5, plus eps 3.5 is 16, so the scale is a quarter."""
    hidden = torch.tensor([[3.0, 4.0]])
    assert rms_norm(hidden, torch.tensor([1.0, 2.0]), 3.5).tolist() == [[0.75, 2.0]]


def test_it_agrees_with_torch() -> None:
    hidden, weight = some(50, 64) * 30, some(64)
    expected = torch.nn.functional.rms_norm(hidden, (64,), weight, 1e-6)
    torch.testing.assert_close(rms_norm(hidden, weight, 1e-6), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    hidden = (some(50, 64) * 30).to(dtype)
    weight = some(64).to(dtype)
    exact = torch.nn.functional.rms_norm(hidden.double(), (64,), weight.double(), 1e-6)
    derived = rms_norm(hidden, weight, 1e-6)
    assert derived.dtype == dtype
    # float32 may fall on the other side of a tie, so a rare last bit is allowed.
    assert (derived != exact.to(dtype)).float().mean() < 0.001


def test_large_states_do_not_overflow() -> None:
    hidden = torch.full((1, 4), 60000.0, dtype=torch.float16)
    assert rms_norm(hidden, torch.ones(4), 1e-6).tolist() == [[1.0] * 4]


def test_the_norm_of_a_run_is_applied_with_its_own_dtype() -> None:
    hidden = torch.tensor([[3.0, 4.0]])
    bfloat16 = NormWeight.of(np.array([0x3F80, 0x4000], "<u2"), "bfloat16", 3.5)
    assert apply_norm(hidden, bfloat16).tolist() == [[0.75, 2.0]]
    assert apply_norm(hidden, norm_weight([1, 2], 3.5)).tolist() == [[0.75, 2.0]]
