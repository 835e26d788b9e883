"""Gives a constant of hs-capture another value, for tests that cannot wait as long as users can."""

from __future__ import annotations

import importlib


def change(assignment: str) -> None:
    """Do ``package.module:NAME=number``. The name must be there and be read where it is used."""
    target, _, number = assignment.partition("=")
    module_name, _, name = target.partition(":")
    module = importlib.import_module(module_name)
    setattr(module, name, type(getattr(module, name))(number))
