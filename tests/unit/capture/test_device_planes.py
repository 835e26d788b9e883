"""The kernel that splits planes on a GPU, run by Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

# A process of its own: Triton decides at import whether kernels are compiled or interpreted.
PROGRAM = """
import torch
from hs_capture.capture.batch import Rows
from hs_capture.capture.copier import split_planes
from hs_capture.capture.device_planes import split_pairs

packed = torch.randint(-32768, 32767, (5, 3 * 2050), dtype=torch.int16)
rows = packed[:, 2050:4100]
low, high = torch.empty(2, 5, 2050, dtype=torch.uint8)
split_pairs(rows, low, high)
pairs = rows.contiguous().view(torch.uint8).view(5, 2050, 2)
assert torch.equal(low, pairs[..., 0])
assert torch.equal(high, pairs[..., 1])
planes = torch.empty(2, 5, 2050, dtype=torch.uint8)
split_planes(rows.view(torch.bfloat16), [Rows(None, 0, 5, 0)], planes)
assert torch.equal(planes, torch.stack([low, high]))
"""


def test_the_kernel_splits_rows_of_a_packed_tensor_like_the_plain_copy() -> None:
    """Width 2050 is no multiple of the block, and the rows lie further apart than they are wide."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
