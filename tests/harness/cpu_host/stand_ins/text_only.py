"""A multimodal model that is served for text, without the image processor that SGLang would need.

SGLang's command line cannot ask for it, its Engine can: ``enable_multimodal=False``.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.configs.model_config import ModelConfig

_initialize = ModelConfig.__init__


def initialize(self: ModelConfig, *args: Any, **kwargs: Any) -> None:
    """Configure the model as text only."""
    kwargs["enable_multimodal"] = False
    _initialize(self, *args, **kwargs)


ModelConfig.__init__ = initialize
