"""SGLang's own Llama and its kin, one of which is inside of another model."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.models import llama


class EnclosedLlamaForCausalLM(torch.nn.Module):
    """Has a Llama inside, as multimodal models have."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.language_model = llama.LlamaForCausalLM(config, quant_config)


EntryClass = [*llama.EntryClass, EnclosedLlamaForCausalLM]
