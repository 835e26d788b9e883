"""What was wrapped in this process, and what could not be."""

from __future__ import annotations

wrapped: list[str] = []
"""The functions of SGLang that are wrapped, by full name."""

broken: dict[str, str] = {}
"""Modules of SGLang that could not be wrapped, each with the reason. A start is then refused,
unless it is the module of a model that is not served."""
