"""Hooks on SGLang's scheduler: weights that are changed while the server runs.

One call changes them (``update_weights_from_disk``), or several do between ``begin_weight_update``
and ``end_weight_update``, which SGLang has from 0.5.21 on. The calls come between forward passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from hs_capture.hooks import runner

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

UPDATE_PREFIX = "update_weights_from_"
"""How the names of SGLang's methods that load weights begin (from disk, tensor, ipc, ...)."""
BEGIN, END = "begin_weight_update", "end_weight_update"


def wrap_updates(module: ModuleType) -> None:
    """Wrap every method of `module`'s classes that changes the weights of the served model."""
    for class_name, defined in inspect.getmembers(module, inspect.isclass):
        if defined.__module__ != module.__name__:
            continue
        for name in list(vars(defined)):
            wrapper = _wrapper(name)
            if wrapper is not None:
                wrapt.wrap_function_wrapper(module, f"{class_name}.{name}", wrapper)


def _wrapper(name: str) -> Callable[..., Any] | None:
    if name.startswith(UPDATE_PREFIX):
        return around_update
    return {BEGIN: around_begin, END: around_end}.get(name)


def around_update(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrapper of the methods that load weights.

    A failed one has changed nothing if the model was not asked to load. It may also have loaded,
    and failed to empty the prefix cache afterwards.
    """
    loads = runner.weight_loads()
    answer = None
    try:
        answer = wrapped(*args, **kwargs)
    finally:
        runner.update_ends(lambda: _left_empty(answer, args, kwargs, loads))
    return answer


def _left_empty(answer: Any, args: Args, kwargs: Kwargs, loads: int) -> bool | None:
    """Whether an update left the prefix cache empty; None if it changed no weights.

    `answer` is None when it raised, and `loads` how often the model had loaded weights before.
    """
    if answer is None:
        return False
    if not answer.success and runner.weight_loads() == loads:
        return None
    request = args[0] if args else kwargs["recv_req"]
    return bool(answer.success and request.flush_cache)


def around_begin(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrapper of the method that begins a change of several calls."""
    runner.weights_change_begins()
    return wrapped(*args, **kwargs)


def around_end(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrapper of the method that ends a change of several calls; it refuses to end none."""
    answer = wrapped(*args, **kwargs)
    runner.weights_change_ends(lambda: bool(answer.success))
    return answer
