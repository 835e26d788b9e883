"""Each test here must leave nothing behind."""

from __future__ import annotations

from leftovers import nothing_left

__all__ = ["nothing_left"]
