"""SGLang's own drafters, and its models that are DeepSeek's under another name."""

from __future__ import annotations

import importlib
from contextlib import suppress

MODULES = [
    "deepseek_nextn",
    "dflash",
    "glm4_moe",
    "llama_eagle3",
    "mistral_large_3",
    "mistral_large_3_eagle",
]

EntryClass = []
for _name in MODULES:
    # Older releases do not have all of them.
    with suppress(ImportError):
        _entry = importlib.import_module(f"sglang.srt.models.{_name}").EntryClass
        EntryClass.extend(_entry if isinstance(_entry, list) else [_entry])
