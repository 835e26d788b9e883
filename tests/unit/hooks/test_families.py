"""Which classes of SGLang's models are captured, and that others do not matter to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hs_capture.errors import ConfigError
from hs_capture.hooks import installed, model, runner
from hs_capture.hooks.compat import eagle3_rule, require_family, require_served_alone, unsupported
from hs_capture.hooks.families import (
    DEEPSEEK_V2,
    FAMILIES,
    LAYER_MARK,
    Family,
    family_of,
    without_others,
)
from hs_capture.hooks.guard import Guard

OTHERS = [family for family in FAMILIES if family is not DEEPSEEK_V2]
LLAMA = next(family for family in FAMILIES if family.stem == "Llama")
MARKING = next(family for family in FAMILIES if family.marks_layers)


def class_of(family: Family, *bases: type, name: str = "", module: str = "") -> type:
    """Return a class with the name and module of the family's, or with others."""
    return type(name or family.causal_lm, bases, {"__module__": module or family.module_name})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.stem)
def test_the_class_of_each_family_is_known(family: Family) -> None:
    assert family_of(class_of(family)) is family
    assert family_of(class_of(family, module="elsewhere")) is None


@pytest.mark.parametrize("family", OTHERS, ids=lambda family: family.stem)
def test_a_class_derived_from_another_family_is_none_of_it(family: Family) -> None:
    """Drafters are such classes, and models that run their layers in another way."""
    assert family_of(class_of(family, class_of(family), name="ForCausalLMEagle3")) is None
    same_name = class_of(family, class_of(family), module="sglang.srt.models.other")
    assert family_of(same_name) is None


def test_kin_of_deepseek_v2_are_of_its_family() -> None:
    v3 = class_of(DEEPSEEK_V2, class_of(DEEPSEEK_V2), name="DeepseekV3ForCausalLM")
    assert family_of(v3) is DEEPSEEK_V2
    assert family_of(class_of(DEEPSEEK_V2, v3, name="Glm", module="other")) is DEEPSEEK_V2


def test_a_model_inside_of_another_is_refused_unless_it_is_deepseeks() -> None:
    inside = class_of(LLAMA)()
    require_served_alone(inside, inside, LLAMA)
    require_served_alone(object(), inside, DEEPSEEK_V2)
    with pytest.raises(
        ConfigError,
        match=r"SimpleNamespace has a LlamaForCausalLM inside, which .* only where it is served by",
    ):
        require_served_alone(SimpleNamespace(), inside, LLAMA)


def test_a_refusal_names_what_is_captured() -> None:
    said = str(unsupported(SimpleNamespace()))
    assert said.startswith("SimpleNamespace is no model that hs-capture captures, which are ")
    assert "DeepSeek V2, V3 and V3.2" in said
    assert [family.causal_lm for family in OTHERS if family.causal_lm not in said] == []


def test_a_release_that_has_a_family_in_another_way_is_refused(tmp_path: Path) -> None:
    """DeepSeek-V2's own was checked before."""
    require_family("0.5.9", tmp_path, DEEPSEEK_V2, None)
    with pytest.raises(
        ConfigError,
        match=r"LlamaForCausalLM is captured from SGLang 0\.5\.22 on; SGLang 0\.5\.21 lacks .*"
        r"llama\.py: LlamaDecoderLayer\.forward",
    ):
        require_family("0.5.21", tmp_path, LLAMA, None)


def test_only_what_is_wrapped_of_the_served_family_is_told() -> None:
    names = ["sglang.a.b", f"{LLAMA.module_name}.L.forward", f"{DEEPSEEK_V2.module_name}.D.forward"]
    assert without_others(names, LLAMA) == tuple(names[:2])
    assert without_others(names, DEEPSEEK_V2) == (names[0], names[2])


def test_a_module_that_could_not_be_wrapped_matters_where_its_model_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(installed.broken, LLAMA.module_name, "no forward")
    runner._require_whole(DEEPSEEK_V2)
    with pytest.raises(ConfigError, match=r"cannot be wrapped \(sglang\.srt\.models\.llama: no f"):
        runner._require_whole(LLAMA)
    monkeypatch.setitem(installed.broken, "sglang.srt.other", "gone")
    with pytest.raises(ConfigError, match=r"cannot be wrapped \(sglang\.srt\.other: gone\)"):
        runner._require_whole(DEEPSEEK_V2)


class Part:
    """A model or a class around it: takes any hook, and has layers that can be marked."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def register_forward_hook(self, hook: Any) -> None:
        self.hook = hook

    def register_forward_pre_hook(self, hook: Any, with_kwargs: bool) -> None:
        self.hook = hook

    def marked(self) -> list[int]:
        return [i for i, layer in enumerate(self.layers) if vars(layer).get(LAYER_MARK)]


def test_layers_are_marked_where_sglang_looks_for_marks() -> None:
    """Ours and a drafter's while rows are wanted, else the drafter's alone."""
    inner = Part(norm=Part(), layers=[Part() for _ in range(8)])
    causal_lm = Part(model=inner, logits_processor=Part())

    def set_eagle3_layers_to_capture(ids: list[int]) -> None:
        inner.layers_to_capture = ids
        for i in ids:
            setattr(inner.layers[i], LAYER_MARK, True)

    causal_lm.set_eagle3_layers_to_capture = set_eagle3_layers_to_capture
    attachment = model.Attachment(causal_lm, MARKING, (-1, 3), True, Guard())
    assert inner.marked() == inner.layers_to_capture == [0, 4]
    causal_lm.set_eagle3_layers_to_capture([2, 4])
    assert inner.marked() == inner.layers_to_capture == [0, 2, 4]
    seen: list[list[int]] = []

    def forward(*_: object) -> tuple[object, None]:
        seen.append(inner.marked())
        return object(), None

    decode = SimpleNamespace(forward_mode=SimpleNamespace(name="DECODE"))
    attachment.forward(forward, (None, None, decode), {})
    assert seen == [[2, 4]]
    assert inner.marked() == [0, 2, 4]


def test_ids_of_a_drafter_are_asked_for_where_the_model_has_the_rule() -> None:
    """A class that hands the ids on to its model is asked like one that does not."""

    class Handing:
        def set_eagle3_layers_to_capture(self, layer_ids: list[int]) -> None:
            self.model.set_eagle3_layers_to_capture([i + 1 for i in layer_ids])  # type: ignore[attr-defined]

    assert eagle3_rule(Handing, SimpleNamespace(), (1, 3)) == (2, 4)
