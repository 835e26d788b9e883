"""SGLang's own Llama: a model that is not of the family that hs-capture captures."""

from __future__ import annotations

from sglang.srt.models.llama import LlamaForCausalLM as EntryClass

__all__ = ["EntryClass"]
