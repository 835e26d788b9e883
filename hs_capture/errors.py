"""Every error that hs-capture raises on purpose.

Each also derives from the builtin that a caller would catch anyway, and says in one line what is
wrong, with which value, and what to do about it.
"""

from __future__ import annotations


class HsCaptureError(Exception):
    """Base of all errors of this package."""


class FormatError(HsCaptureError, ValueError):
    """A file is damaged, or of a version that this release cannot read."""


class ConfigError(HsCaptureError, ValueError):
    """A setting is wrong; the message names the setting, its value and what is accepted."""


class StoreNotFoundError(HsCaptureError, FileNotFoundError):
    """A path holds no captures and no run that could receive some."""


class NotCapturedError(HsCaptureError, KeyError):
    """The rows, layer, state or request asked for was not captured."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which puts a sentence in quotes.
        return Exception.__str__(self)
