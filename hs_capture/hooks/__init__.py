"""The only place that knows SGLang's names.

``install`` asks wrapt to wrap SGLang's classes when their modules load. ``runner`` wraps the model
runner (which model is served, which batch runs), ``model`` wraps the model (where the states are),
``families`` says which models, ``requests`` whose rows a batch has, ``layers`` settles which layers
are wanted, ``compat`` knows what this SGLang offers, ``lineage`` whose rows the KV cache holds,
``finish`` when an answer has ended, ``decode_graphs`` keeps what graphs leave behind, ``session``
connects all of it to the ring.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import wrapt

from hs_capture.hooks.families import FAMILIES
from hs_capture.hooks.installed import broken, wrapped

FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
LOAD_MODEL = "ModelRunner.load_model"
WEIGHT_UPDATERS = (
    "sglang.srt.managers.scheduler_update_weights_mixin",
    "sglang.srt.managers.scheduler_components.weight_updater",
)
"""Where the scheduler's methods that change weights are: up to 0.5.13, and from 0.5.14 on."""

_installed = False


def install() -> None:
    """Have SGLang's classes wrapped when their modules load. A second call does nothing.

    Imports neither torch nor SGLang.
    """
    global _installed
    if _installed:
        return
    _installed = True
    for module, functions in {
        **{
            family.module_name: {
                f"{family.causal_lm}.__init__": ("model", "around_causal_lm_init"),
                f"{family.model}.forward": ("model", "around_model_forward"),
            }
            for family in FAMILIES
        },
        FORWARD_BATCH: {"ForwardBatch.init_new": ("runner", "around_init_new")},
        MODEL_RUNNER: {
            # First, because it refuses the start if one of the others cannot be wrapped.
            LOAD_MODEL: ("runner", "around_load_model"),
            "ModelRunner.forward": ("runner", "around_forward"),
        },
    }.items():
        wrapt.register_post_import_hook(_wrapper_of(functions), module)
    for module in WEIGHT_UPDATERS:
        wrapt.register_post_import_hook(_watch_weights, module)


def _watch_weights(module: ModuleType) -> None:
    try:
        from hs_capture.hooks.weights import wrap_updates

        wrap_updates(module)
    except Exception as error:
        broken[module.__name__] = f"{type(error).__name__}: {error}"


def _wrapper_of(functions: dict[str, tuple[str, str]]) -> Callable[[ModuleType], None]:
    """Return the hook that wraps `functions` of a module that was just imported."""

    def wrap(module: ModuleType) -> None:
        # An exception from here would make SGLang drop the module from its model registry with a
        # warning and serve without us (its models/registry.py swallows import errors).
        try:
            for name, (file, wrapper) in functions.items():
                ours = __import__(f"{__name__}.{file}", fromlist=[wrapper])
                wrapt.wrap_function_wrapper(module, name, getattr(ours, wrapper))
                wrapped.append(f"{module.__name__}.{name}")
        except Exception as error:
            broken[module.__name__] = f"{type(error).__name__}: {error}"
            if module.__name__ == MODEL_RUNNER and f"{MODEL_RUNNER}.{LOAD_MODEL}" not in wrapped:
                # Nobody is left to refuse the start with this reason.
                print(
                    f"hs-capture: cannot wrap {module.__name__}: {error!r}; nothing is captured: "
                    "use a release of SGLang that docs/compatibility.md names",
                    file=sys.stderr,
                )

    return wrap
