"""Records the residual stream of a DeepSeek model by PyTorch hooks of its own.

It shares nothing with hs-capture and wraps nothing of SGLang. hs-capture reads SGLang's aux
states; this reads what the norms hand on: RMSNorm returns the sum it normed, and that sum is the
stream after the layer before it.

A forward is one file ``NNNNNN.pt`` in the directory: a dict of tensors with ``positions`` and
``input_ids`` (int64 [rows]), ``layer.-1`` ... ``layer.<n-2>``, ``final.pre_norm`` and
``final.post_norm`` ([rows, hidden size], the dtype of the model), and a report of what is hooked
into this process in ``report.json``.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

_installed: set[Path] = set()


def install(directory: Path) -> None:
    """Wait for the first forward of a DeepSeek model, then tap that model."""
    if directory in _installed:
        return
    _installed.add(directory)
    directory.mkdir(parents=True, exist_ok=True)

    def first_forward(module: torch.nn.Module, args: Any) -> None:
        if type(module).__name__ == "DeepseekV2Model":
            handle.remove()
            _attach(module, directory)

    handle = register_module_forward_pre_hook(first_forward)


def _attach(model: Any, directory: Path) -> None:
    (directory / "report.json").write_text(json.dumps(_report(model)))
    record: dict[str, torch.Tensor] = {}
    written = 0

    def embedded(module: torch.nn.Module, args: Any, output: torch.Tensor) -> None:
        record.clear()
        record["input_ids"] = args[0].clone()
        record["layer.-1"] = output.clone()

    def positioned(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        record["positions"] = (args[0] if args else kwargs["positions"]).clone()

    def summed(name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            record[name] = output[1].clone()

        return hook

    def finished(module: torch.nn.Module, args: Any, output: Any) -> None:
        nonlocal written
        record["final.post_norm"] = output[0].clone()
        record["final.pre_norm"] = output[1].clone()
        part = directory / f"{written:06d}.part"
        torch.save(dict(record), part)
        part.rename(part.with_suffix(".pt"))
        written += 1

    model.embed_tokens.register_forward_hook(embedded)
    model.layers[0].register_forward_pre_hook(positioned, with_kwargs=True)
    for layer_id in range(1, len(model.layers)):
        norm = model.layers[layer_id].input_layernorm
        norm.register_forward_hook(summed(f"layer.{layer_id - 1}"))
    model.norm.register_forward_hook(finished)


def _report(model: Any) -> dict[str, Any]:
    """Say what of SGLang is wrapped or hooked in this process, before this tap adds its hooks.

    And of which dtypes the model's weights are.
    """
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM, DeepseekV2Model

    names = [
        (DeepseekV2ForCausalLM, "__init__"),
        (DeepseekV2Model, "forward"),
        (ForwardBatch, "init_new"),
        (ModelRunner, "forward"),
        (ModelRunner, "load_model"),
    ]
    return {
        "kinds": {
            f"{owner.__name__}.{name}": type(inspect.getattr_static(owner, name)).__name__
            for owner, name in names
        },
        "hooks": {
            "norm": len(model.norm._forward_hooks) + len(model.norm._forward_pre_hooks),
            "model": len(model._forward_hooks) + len(model._forward_pre_hooks),
        },
        "layers_to_capture": list(model.layers_to_capture),
        "dtypes": sorted({str(parameter.dtype) for parameter in model.parameters()}),
        "modules": sorted(
            name
            for name in sys.modules
            if name.partition(".")[0] in {"hs_capture", "sitecustomize_shim", "wrapt"}
        ),
        "meta_path": [
            getattr(finder, "__module__", None) or type(finder).__module__
            for finder in sys.meta_path
        ],
    }
