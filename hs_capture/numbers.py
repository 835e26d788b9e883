"""Looking at element values of any captured type without torch: finite or not, zero or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Types that NumPy carries as bare bits: all bits but the sign (the "fnuz" types have no -0.0, it is
# their NaN), the bits that are all set in a value that is not finite, or else the NaN patterns.
_WITHOUT_SIGN = {"bfloat16": 0x7FFF, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7F}
_EXPONENT = {"bfloat16": 0x7F80, "float8_e5m2": 0x7C}
_NOT_FINITE = {
    "float8_e4m3fn": (0x7F, 0xFF),
    "float8_e4m3fnuz": (0x80,),
    "float8_e5m2fnuz": (0x80,),
}


def count_not_finite(values: NDArray[Any], dtype: str) -> int:
    """How many of `values`, in the carrier type of `dtype`, are infinite or not a number."""
    if dtype in _EXPONENT:
        mask = values.dtype.type(_EXPONENT[dtype])
        return int(np.count_nonzero((values & mask) == mask))
    if dtype in _NOT_FINITE:
        return int(np.count_nonzero(np.isin(values, _NOT_FINITE[dtype])))
    if values.dtype.kind == "f":
        return int(np.count_nonzero(~np.isfinite(values)))
    return 0


def any_nonzero(values: NDArray[Any], dtype: str) -> bool:
    """Whether any of `values` differs from zero; -0.0 is zero."""
    if dtype in _WITHOUT_SIGN:
        return bool(np.any(values & values.dtype.type(_WITHOUT_SIGN[dtype])))
    return bool(np.any(values))
