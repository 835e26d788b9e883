"""SGLang's scheduler in an actor of Ray, which chooses its GPU before it serves."""

from __future__ import annotations

import torch


def set_device(_device: object) -> None:
    """There is none to choose."""


torch.cuda.set_device = set_device
