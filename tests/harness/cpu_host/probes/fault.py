"""Makes one function raise, to see what a server does then."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn


def plant(target: str) -> None:
    """Replace ``package.module:name`` or ``package.module:Class.name`` by a function that raises.

    Must run before the function is bound elsewhere: importing the module is all it does first.
    """
    module_name, _, attribute = target.partition(":")
    *parents, name = attribute.split(".")
    owner: Any = importlib.import_module(module_name)
    for parent in parents:
        owner = getattr(owner, parent)
    if getattr(getattr(owner, name), "planted", False):
        return

    def planted(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"planted in {target}")

    planted.planted = True  # type: ignore[attr-defined]
    setattr(owner, name, planted)
