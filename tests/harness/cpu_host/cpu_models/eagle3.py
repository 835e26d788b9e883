"""SGLang's own EAGLE-3 drafter, for servers that draft."""

from __future__ import annotations

from sglang.srt.models.llama_eagle3 import EntryClass

__all__ = ["EntryClass"]
