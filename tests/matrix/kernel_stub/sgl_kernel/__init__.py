"""Stands in for SGLang's CUDA kernels, which releases up to 0.5.13 import on every machine.

Every name exists, in every submodule, so that imports work. No kernel does: calling one says which.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

__version__ = "0.0"
__path__: list[str] = []


class _Kernel:
    """A kernel, or a name space of kernels, that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{self._name} needs a GPU")


class _Submodules(MetaPathFinder, Loader):
    """Makes every submodule that is asked for."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        setattr(module, "__getattr__", lambda kernel: _named(name, kernel))  # noqa: B010


def _named(module: str, name: str) -> _Kernel:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Kernel(f"{module}.{name}")


def __getattr__(name: str) -> _Kernel:
    return _named(__name__, name)


sys.meta_path.append(_Submodules())
