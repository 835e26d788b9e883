"""Mistral Large 3 in the dtype that is asked for: SGLang serves it in bfloat16 whatever is asked.

Only in float32 can its states be compared with those that transformers computes.
"""

from __future__ import annotations

from sglang.srt.arg_groups.model_override_base import MODEL_OVERRIDES

MODEL_OVERRIDES.pop("MistralLarge3ForCausalLM", None)
