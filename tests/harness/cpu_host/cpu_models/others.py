"""SGLang's own drafters, and its models of other families than DeepSeek's and Llama's."""

from __future__ import annotations

import importlib
from contextlib import suppress

MODULES = [
    "deepseek_nextn",
    "dflash",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt_oss",
    "llama_eagle3",
    "mistral_large_3",
    "mistral_large_3_eagle",
    "qwen2",
    "qwen3",
    "qwen3_moe",
]

EntryClass = []
for _name in MODULES:
    # Older releases do not have all of them.
    with suppress(ImportError):
        _entry = importlib.import_module(f"sglang.srt.models.{_name}").EntryClass
        EntryClass.extend(_entry if isinstance(_entry, list) else [_entry])
