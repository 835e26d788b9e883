"""The models of SGLang that are captured: a table with one row a family. Imports nothing of SGLang.

All of them build a ``model`` and a ``logits_processor``, hand out the states of the layers in
``model.layers_to_capture`` when ``capture_aux_hidden_states`` is set, and norm with ``model.norm``.
A row is here only when a model of it, run by SGLang, had the states that transformers computes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One way in which SGLang writes a model.

    Attributes:
        module: name of the module in ``sglang.srt.models``.
        stem: how the names of its classes begin: ``LlamaForCausalLM``, ``LlamaModel`` and so on.
        collector: parameter with which a layer is asked for the complete state before it. In a
            release without it the model adds up two terms that may be partial sums of a rank.
        since: the first release that keeps the contract (``contract.family_contract``), or, of
            DeepSeek-V2, that has the collector.
        base: module and class from which its model has what it does not define itself.
        marks_layers: whether a layer is asked because of an attribute of its own (`LAYER_MARK`).
        with_kin: whether classes derived from it, and models inside of others, are captured too.
    """

    module: str
    stem: str
    collector: str
    since: str
    base: tuple[str, str] | None = None
    marks_layers: bool = False
    with_kin: bool = False

    @property
    def module_name(self) -> str:
        """Full name of the module."""
        return f"sglang.srt.models.{self.module}"

    @property
    def causal_lm(self) -> str:
        """Name of the class that has the model and the logits processor."""
        return f"{self.stem}ForCausalLM"

    @property
    def model(self) -> str:
        """Name of the class that runs the layers."""
        return f"{self.stem}Model"

    @property
    def layer(self) -> str:
        """Name of the class of a layer."""
        return f"{self.stem}DecoderLayer"

    def layers_hand_out_states(self) -> bool:
        """Whether a layer of the SGLang of this process has the collector. Imports the model."""
        layer = getattr(importlib.import_module(self.module_name), self.layer)
        return self.collector in inspect.signature(layer.forward).parameters


LAYER_MARK = "_is_layer_to_capture"
"""The attribute of a layer that says whether it is asked for its state."""

DEEPSEEK_V2 = Family(
    "deepseek_v2", "DeepseekV2", "captured_last_layer_outputs", since="0.5.14", with_kin=True
)
FAMILIES = (
    DEEPSEEK_V2,
    Family("llama", "Llama", "capture_output", since="0.5.22"),
    Family("qwen2", "Qwen2", "capture_output", since="0.5.22"),
    Family("qwen3", "Qwen3", "capture_output", since="0.5.21", base=("qwen2", "Qwen2Model")),
    Family(
        *("qwen3_moe", "Qwen3Moe", "captured_last_layer_outputs"),
        since="0.5.21",
        base=("qwen2_moe", "Qwen2MoeModel"),
        marks_layers=True,
    ),
    Family("glm4_moe", "Glm4Moe", "capture_output", since="0.5.21"),
    Family("glm4_moe_lite", "Glm4MoeLite", "capture_output", since="0.5.21"),
    Family("gpt_oss", "GptOss", "capture_output", since="0.5.21"),
)

DEEPSEEK_KIN = "DeepSeek V2, V3 and V3.2, Kimi-K2 and K2.5, GLM DSA, Mistral Large 3"
SUPPORTED = f"the DeepSeek-V2 family ({DEEPSEEK_KIN}) and " + ", ".join(
    family.causal_lm for family in FAMILIES if not family.with_kin
)
"""What is captured, in words for a message."""


def family_of(causal_lm: type) -> Family | None:
    """Return the family of a class, None if it is of none.

    A class derived from a family's may run its layers in another way, and many drafters are: so
    all but the kin of DeepSeek-V2 must be of the very class.
    """
    for family in FAMILIES:
        for depth, ancestor in enumerate(causal_lm.__mro__):
            named = (ancestor.__module__, ancestor.__name__)
            if named == (family.module_name, family.causal_lm):
                return family if family.with_kin or depth == 0 else None
    return None


def without_others(names: Iterable[str], family: Family) -> tuple[str, ...]:
    """Return those of the full names that are not in the module of another family."""
    others = tuple(f"{other.module_name}." for other in FAMILIES if other is not family)
    return tuple(name for name in names if not name.startswith(others))
