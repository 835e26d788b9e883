"""Records what a Kimi-K2.5 makes of images before its language model, by a PyTorch hook of its own.

Each time images are projected to the width of the language model is one file ``NNNNNN.pt``: a
tensor [tokens, hidden size].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

_installed: set[Path] = set()


def install(directory: Path) -> None:
    """Record into `directory` from the first image on."""
    if directory in _installed:
        return
    _installed.add(directory)
    directory.mkdir(parents=True, exist_ok=True)
    written = 0

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        nonlocal written
        if type(module).__name__ == "K2VLMultiModalProjector":
            part = directory / f"{written:06d}.part"
            torch.save(output.clone(), part)
            part.rename(part.with_suffix(".pt"))
            written += 1

    register_module_forward_hook(after)
