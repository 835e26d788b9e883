"""Capture hidden states from a running SGLang server, and read them back.

Public names are loaded when they are first used. Importing this package imports nothing else, so
that start-up code and processes that never read a capture do not pay for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hs_capture.captured_request import Capture
    from hs_capture.dataset import HiddenStatesDataset
    from hs_capture.errors import (
        ConfigError,
        FormatError,
        HsCaptureError,
        NotCapturedError,
        StoreNotFoundError,
    )
    from hs_capture.store import CaptureStore, open_store
    from hs_capture.streaming import stream

__version__ = "0.1.0"

__all__ = [
    "Capture",
    "CaptureStore",
    "ConfigError",
    "FormatError",
    "HiddenStatesDataset",
    "HsCaptureError",
    "NotCapturedError",
    "StoreNotFoundError",
    "__version__",
    "open_store",
    "stream",
]

_HOMES = {
    "Capture": "hs_capture.captured_request",
    "CaptureStore": "hs_capture.store",
    "ConfigError": "hs_capture.errors",
    "FormatError": "hs_capture.errors",
    "HiddenStatesDataset": "hs_capture.dataset",
    "HsCaptureError": "hs_capture.errors",
    "NotCapturedError": "hs_capture.errors",
    "StoreNotFoundError": "hs_capture.errors",
    "open_store": "hs_capture.store",
    "stream": "hs_capture.streaming",
}


def __getattr__(name: str) -> object:
    """Load a public name from its home, once."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
