"""A worse machine for one writer process, which has this folder on its PYTHONPATH.

HS_TEST_DISK names a file with the bytes a second that the disk takes, HS_TEST_CLOCK one with the
seconds that the clock is put forward. Both may change at any time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_clock, _disk = os.environ.get("HS_TEST_CLOCK"), os.environ.get("HS_TEST_DISK")
_time, _pwritev = time.time, os.pwritev


def _shifted_time() -> float:
    return _time() + float(Path(str(_clock)).read_text())


def _slow_pwritev(file: int, parts: Sequence[memoryview], offset: int) -> int:
    written = _pwritev(file, parts, offset)
    time.sleep(written / float(Path(str(_disk)).read_text()))
    return written


if _clock:
    time.time = _shifted_time
if _disk:
    os.pwritev = _slow_pwritev  # type: ignore[assignment]
