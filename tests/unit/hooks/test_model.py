"""Our layers and SGLang's own share one capture, and each side gets what it asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hs_capture.hooks.families import DEEPSEEK_V2
from hs_capture.hooks.guard import Guard
from hs_capture.hooks.model import Attachment

LAYERS, ROWS, WIDTH = 8, 5, 4
OURS = (-1, 1, 5)
"""Layers whose ids in SGLang's counting, by their input, are 0, 2 and 6."""

SHARES = {
    "none": [],
    "disjoint": [1, 3, 7],
    "subset": [2],
    "equal": [0, 2, 6],
    "superset": [0, 1, 2, 6, 7],
    "overlapping": [2, 5, 7],
    "not ascending": [7, 2],
}


class LogitsProcessor(torch.nn.Module):
    """Keeps what it is given, as SGLang's is called."""

    def forward(
        self, input_ids: Any, hidden: Any, lm_head: Any, batch: Any, aux: Any = None
    ) -> None:
        self.given = aux


class Norm(torch.nn.Module):
    """Returns the normed state and the sum, as SGLang's fused norm does."""

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -states, states


class Model:
    """A model whose layer i adds i + 1 to what it is given; it captures as SGLang's does."""

    def __init__(self, packed: bool) -> None:
        self.packed = packed
        self.layers_to_capture: list[int] = []
        self.norm = Norm()

    def forward(self, states: torch.Tensor, _positions: None, _batch: Any) -> Any:
        aux = []
        for layer in range(LAYERS):
            if layer in self.layers_to_capture:
                aux.append(states.clone())
            states = states + layer + 1
        hidden, _ = self.norm(states)
        if not aux:
            return hidden
        return hidden, torch.cat(aux, dim=-1) if self.packed else aux


class CausalLM:
    """What SGLang's has around its model."""

    def __init__(self, packed: bool) -> None:
        self.model = Model(packed)
        self.logits_processor = LogitsProcessor()
        self.capture_aux_hidden_states = False

    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = list(ids)

    def run(self, states: torch.Tensor, batch: Any, attachment: Attachment | None = None) -> Any:
        """Run a forward pass; return what the logits processor was given beside the hidden."""
        if attachment is None:
            result = self.model.forward(states, None, batch)
        else:
            attachment.begin_pass()
            result = attachment.forward(self.model.forward, (states, None, batch), {})
        aux = None
        if self.capture_aux_hidden_states:
            result, aux = result
        self.logits_processor(None, result, None, batch, aux)
        return self.logits_processor.given


def prefill() -> Any:
    return SimpleNamespace(forward_mode=SimpleNamespace(name="EXTEND"))


def verification() -> Any:
    return SimpleNamespace(forward_mode=SimpleNamespace(name="TARGET_VERIFY"))


def stream(states: torch.Tensor, layer: int) -> torch.Tensor:
    """Return the output of a layer: the sum of all that the layers so far have added."""
    return states + sum(range(1, layer + 2))


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(torch.equal, found, expected))
    return (found is expected) if expected is None else torch.equal(found, expected)


@pytest.fixture
def states() -> torch.Tensor:
    # Whole numbers, whose sums are exact in any order.
    return torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("packed", [False, True], ids=["list", "packed"])
@pytest.mark.parametrize("pre_norm", [False, True], ids=["no-pre-norm", "pre-norm"])
def test_both_sides_get_what_they_asked_for(
    states: torch.Tensor, share: str, packed: bool, pre_norm: bool
) -> None:
    """SGLang's share is what a server without us has, in a prefill, a verification, a decode."""
    alone, shared = CausalLM(packed), CausalLM(packed)
    received: list[tuple[list[torch.Tensor], torch.Tensor, bool]] = []
    attachment = Attachment(shared, DEEPSEEK_V2, OURS, pre_norm, Guard())
    attachment.receive = lambda *given: received.append(given)
    for causal_lm in (alone, shared) if SHARES[share] else ():
        causal_lm.set_eagle3_layers_to_capture(SHARES[share])

    assert same(shared.run(states, prefill(), attachment), alone.run(states, prefill()))
    ((ours, post_norm, replayed),) = received
    expected = [stream(states, layer) for layer in OURS]
    if pre_norm:
        expected.append(stream(states, LAYERS - 1))
    assert same(ours, expected)
    assert post_norm.equal(-stream(states, LAYERS - 1))
    assert not replayed

    given = alone.run(states, verification())
    assert same(shared.run(states, verification(), attachment), given)
    # Without another batch between them, the next prefill is captured again.
    received.clear()
    shared.run(states, prefill(), attachment)
    assert same(received[0][0], expected)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("packed", [False, True], ids=["list", "packed"])
def test_a_prefill_without_wanted_rows_captures_only_sglangs(
    states: torch.Tensor, share: str, packed: bool
) -> None:
    alone, shared = CausalLM(packed), CausalLM(packed)
    attachment = Attachment(shared, DEEPSEEK_V2, OURS, True, Guard())
    attachment.wants_batch = lambda: False
    received: list[list[torch.Tensor]] = []
    attachment.receive = lambda ours, *_: received.append(ours)
    for causal_lm in (alone, shared) if SHARES[share] else ():
        causal_lm.set_eagle3_layers_to_capture(SHARES[share])
    assert same(shared.run(states, prefill(), attachment), alone.run(states, prefill()))
    assert received == []


def test_a_receiver_that_fails_changes_nothing_for_sglang(states: torch.Tensor) -> None:
    alone, shared = CausalLM(True), CausalLM(True)
    attachment = Attachment(shared, DEEPSEEK_V2, OURS, True, Guard())

    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    attachment.receive = fail
    for causal_lm in (alone, shared):
        causal_lm.set_eagle3_layers_to_capture([1, 2])
    assert same(shared.run(states, prefill(), attachment), alone.run(states, prefill()))


def test_each_load_of_weights_is_counted_also_one_that_fails() -> None:
    class Loading(CausalLM):
        def load_weights(self, weights: list[str]) -> int:
            return len(weights)

    causal_lm = Loading(True)
    attachment = Attachment(causal_lm, DEEPSEEK_V2, OURS, True, Guard())
    assert causal_lm.load_weights(["a", "b"]) == 2
    with pytest.raises(TypeError):
        causal_lm.load_weights(None)  # type: ignore[arg-type]
    assert attachment.weight_loads == 2
