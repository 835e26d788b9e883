"""A worse machine for one writer process, which has this folder on its PYTHONPATH.

HS_TEST_DISK names a file with the bytes a second that the disk takes, HS_TEST_CLOCK one with the
seconds that the clock is put forward. Both may change at any time. HS_TEST_TAKE names a file that
may come at any time, with how many entries of the ring the writer's main thread takes until it
fails; that uses the file up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_clock, _disk = os.environ.get("HS_TEST_CLOCK"), os.environ.get("HS_TEST_DISK")
_time, _pwritev = time.time, os.pwritev


def _shifted_time() -> float:
    return _time() + float(Path(str(_clock)).read_text())


def _slow_pwritev(file: int, parts: Sequence[memoryview], offset: int) -> int:
    written = _pwritev(file, parts, offset)
    time.sleep(written / float(Path(str(_disk)).read_text()))
    return written


def _plant_in_take(file: Path) -> None:
    from hs_capture.writer.process import Writer

    take = Writer._take

    def take_or_fail(writer: Writer) -> Iterator[Any]:
        for taken, entry in enumerate(take(writer)):
            if file.exists() and taken == int(file.read_text()):
                file.unlink()
                raise RuntimeError("planted in the writer's main thread")
            yield entry

    Writer._take = take_or_fail  # type: ignore[method-assign]


if _clock:
    time.time = _shifted_time
if _disk:
    os.pwritev = _slow_pwritev  # type: ignore[assignment]
if _take_file := os.environ.get("HS_TEST_TAKE"):
    _plant_in_take(Path(_take_file))
