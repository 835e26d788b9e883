"""Weights that are changed while the server runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from hs_capture.hooks import runner

UPDATE_PREFIX = "update_weights_from_"
"""How the names of SGLang's methods that change weights begin (from disk, from tensors, ...): the
scheduler's worker has them up to 0.5.20, a component of its own from 0.5.21 on."""


def wrap_updates(module: ModuleType) -> None:
    """Wrap every method of `module`'s classes that changes the weights of the served model."""
    for class_name, defined in inspect.getmembers(module, inspect.isclass):
        if defined.__module__ == module.__name__:
            for name in [n for n in vars(defined) if n.startswith(UPDATE_PREFIX)]:
                wrapt.wrap_function_wrapper(module, f"{class_name}.{name}", around_update)


def around_update(
    wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of the methods that change weights."""
    runner.weights_change()
    return wrapped(*args, **kwargs)
