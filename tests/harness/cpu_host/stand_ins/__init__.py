"""Parts of SGLang that need a GPU, in a form that a CPU can run; off until asked for."""

from __future__ import annotations

import importlib
import os

STAND_INS = "HS_TEST_STAND_INS"
"""Names modules of this package, with commas between them."""


def install() -> None:
    """Put those in place that the environment names. A second call changes nothing."""
    for name in filter(None, os.environ.get(STAND_INS, "").split(",")):
        importlib.import_module(f"stand_ins.{name}")
