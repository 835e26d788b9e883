"""What the model computes for a prompt, by Hugging Face transformers with the same weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TIE = 2e-6
"""Scores of experts that differ by less are a tie: in float32 they are right to some 1e-7."""


@dataclass(frozen=True)
class Tie:
    """A token for which the last expert that a layer asks scored as the first one that it does not.

    Sums in another order decide between them, so of two engines that are both right each may ask
    another one, and everything behind that differs.
    """

    layer: int
    row: int


@dataclass(frozen=True)
class States:
    """The states of one prompt of T tokens; every tensor is [T, hidden size], float32.

    ``layers`` maps a layer id to the output of that decoder layer, -1 to the embedding.
    """

    layers: dict[int, torch.Tensor]
    pre_norm: torch.Tensor
    post_norm: torch.Tensor
    ties: tuple[Tie, ...] = ()
    """Where another choice of experts would have been as good."""


class Reference:
    """Computes states with transformers, and remembers them by prompt."""

    def __init__(self, model_path: Path) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        # SGLang's scheduler keeps a core busy even when it is idle. A second thread here would
        # wait for that core at every operation, and a prompt would take seconds.
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self._known: dict[tuple[int, ...], States] = {}
        self._seen: dict[Any, torch.Tensor] = {}
        self._images: tuple[int, torch.Tensor] | None = None
        self._ties: list[Tie] = []
        self._other: Tie | None = None
        # What the hooks read, of whichever copy of this object runs the model.
        self._swapped: list[Tie | None] = [None]
        # Hooks of our own, because the last of transformers' `hidden_states` is normed already.
        inner = self._model.model
        for layer_id, layer in enumerate(inner.layers):
            layer.register_forward_hook(self._keep_output(layer_id))
            gate = getattr(layer.mlp, "gate", None)
            if type(gate).__name__ == "DeepseekV2TopkRouter":
                gate.register_forward_hook(self._see_ties(layer_id))
        inner.norm.register_forward_pre_hook(self._keep_input("pre_norm"))
        inner.norm.register_forward_hook(self._keep_output("post_norm"))

    @property
    def norm_weight(self) -> torch.Tensor:
        """The weight of the final norm, float32 [hidden size]."""
        return self._model.model.norm.weight.detach()

    @property
    def head_weight(self) -> torch.Tensor:
        """The weight of the language-model head, float32 [vocabulary, hidden size]."""
        return self._model.lm_head.weight.detach()

    def states(self, prompt: Sequence[int]) -> States:
        """Return the states of every token of ``prompt``."""
        key = tuple(prompt)
        if key not in self._known:
            self._seen.clear()
            self._ties.clear()
            self._swapped[:] = [self._other]
            embeddings = self._embeddings(key)
            with torch.no_grad():
                self._model.model(inputs_embeds=embeddings, use_cache=False)
            named = {-1: embeddings[0], **self._seen}
            pre_norm, post_norm = named.pop("pre_norm"), named.pop("post_norm")
            self._known[key] = States(named, pre_norm, post_norm, tuple(self._ties))
        return self._known[key]

    def choosing_otherwise(self, tie: Tie) -> Reference:
        """Return the same model, but for the expert that it asks at `tie`."""
        other = copy.copy(self)
        other._known, other._other = {}, tie
        return other

    def next_token(self, prompt: Sequence[int]) -> int:
        """Return the most likely token after ``prompt``."""
        with torch.no_grad():
            output = self._model(inputs_embeds=self._embeddings(prompt))
        return int(output.logits[0, -1].argmax())

    def seeing(self, placeholder: int, rows: torch.Tensor) -> Reference:
        """Return the same model for prompts with images.

        ``rows`` [tokens, hidden size] are embeddings that take the places of the tokens
        ``placeholder``, in their order.
        """
        other = copy.copy(self)
        other._known = {}
        other._images = placeholder, rows
        return other

    def _embeddings(self, prompt: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([list(prompt)])
        embeddings: torch.Tensor = self._model.model.embed_tokens(ids).detach()
        if self._images is not None:
            placeholder, rows = self._images
            embeddings[ids == placeholder] = rows
        return embeddings

    def _keep_output(self, name: Any) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            self._seen[name] = (output[0] if isinstance(output, tuple) else output)[0].clone()

        return hook

    def _see_ties(self, layer: int) -> Any:
        def hook(gate: Any, args: Any, output: Any) -> Any:
            logits, weights, indices = output
            scores = logits.softmax(dim=-1)
            best = scores.topk(gate.top_k + 1, dim=-1)
            margin = best.values[:, -2] - best.values[:, -1]
            self._ties += [Tie(layer, int(row)) for row in (margin < TIE).nonzero()]
            wanted = self._swapped[0]
            if wanted is None or wanted.layer != layer:
                return output
            indices, weights = indices.clone(), weights.clone()
            last, next_best = best.indices[wanted.row, -2:]
            place = int((indices[wanted.row] == last).nonzero())
            indices[wanted.row, place] = next_best
            weights[wanted.row, place] = best.values[wanted.row, -1] * gate.routed_scaling_factor
            return logits, weights, indices

        return hook

    def _keep_input(self, name: Any) -> Any:
        def hook(module: torch.nn.Module, args: Any) -> None:
            self._seen[name] = args[0][0].clone()

        return hook
