"""Hooks on the model: where the hidden states are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hs_capture.hooks.compat import DECODE_MODE, PREFILL_MODES
from hs_capture.hooks.decode_graphs import DecodeGraphs
from hs_capture.hooks.families import LAYER_MARK, Family, family_of
from hs_capture.hooks.guard import Guard
from hs_capture.layer_ids import internal_id

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

HIDDEN_ARGUMENT, AUX_ARGUMENT = 1, 4
"""Positions of ``hidden_states`` and ``aux_hidden_states`` in ``LogitsProcessor.forward`` (the same
in SGLang 0.5.4 to 0.5.23)."""
BATCH_ARGUMENT = 2
"""Position of ``forward_batch`` in the ``forward`` of a model (``DeepseekV2Model`` and others)."""
LOADER = "load_weights"
"""How SGLang has a model load weights, when it starts and when they are updated."""
SETTERS = ("set_eagle3_layers_to_capture", "set_dflash_layers_to_capture")
"""How SGLang asks a model for layers of its own: for a drafter, or for its users."""


Receive = Callable[[list[torch.Tensor], torch.Tensor, bool], None]
"""Takes aux states and, if asked for, the pre-norm state; the post-norm state; and whether they lie
in memory that the next pass writes to again (the replay of a CUDA graph)."""


class Attachment:
    """Our hooks on the one served model: it hands over the states of each wanted forward pass.

    States leave the model as its output, (hidden, [aux..., pre-norm]), and are taken out again
    before SGLang's logits processor: tensor operations in between may be part of a CUDA graph.
    SGLang may capture layers of its own, for a drafter. The model then captures both, and SGLang
    gets what it would have had.
    """

    def __init__(
        self,
        causal_lm: Any,
        family: Family,
        layer_ids: tuple[int, ...],
        pre_norm: bool,
        guard: Guard,
        modes: frozenset[str] = PREFILL_MODES,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """Switch SGLang's layer capture on in `causal_lm`, a model of `family`.

        With `pre_norm` the final state before the norm is handed over too. `modes` are the names of
        the forward modes that may have wanted rows, `graphs` is for what decode graphs leave, where
        SGLang may record some.
        """
        self._modes = modes
        self._graphs = graphs
        # The tokens of a pass of a decode graph that is recorded now.
        self._recorded: torch.Tensor | None = None
        self._ran = False
        self.causal_lm = causal_lm
        self.family = family
        self.model = causal_lm.model
        self.layer_ids = layer_ids
        self.wants_batch: Callable[[], bool | None] = lambda: None
        """Whether the running batch has wanted rows; None when no batch was announced."""
        self.receive: Receive | None = None
        self._takes_pre_norm = pre_norm
        self._pre_norm: torch.Tensor | None = None
        self._capturing = False
        self._packed = False
        self._replayed = True
        """Whether the states come from a pass in which our Python did not run."""
        self.weight_loads = 0
        """How often the model was asked to load weights."""
        self._guard = guard
        self._share_with([])
        causal_lm.capture_aux_hidden_states = True
        for name in SETTERS:
            self._follow(name, lambda: self._share_with(self.model.layers_to_capture))
        self._follow(LOADER, self._count_load)
        if pre_norm:
            self.model.norm.register_forward_hook(self._guarded_on_norm)
        causal_lm.logits_processor.register_forward_pre_hook(
            self._guarded_on_logits, with_kwargs=True
        )

    def begin_pass(self) -> None:
        """Say that a forward pass begins; it is a replay unless ``forward`` below runs."""
        self._replayed = True
        self._ran = False
        self._recorded = None

    def replayed_decode(self) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
        """Return tokens and states that the replay of a decode graph has left in this pass.

        As ``receive`` gets the states, the post-norm state last. None if it was no replay.
        """
        return None if self._ran or self._graphs is None else self._graphs.replayed()

    def forward(self, wrapped: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Run the model's ``forward`` with our layers captured only where rows are wanted."""
        wanted = False
        self._ran = True
        with self._guard("deciding whether a batch is captured"):
            wanted = self._is_wanted(args, kwargs)
        if not wanted:
            with self._only_theirs():
                result = wrapped(*args, **kwargs)
            return result if isinstance(result, tuple) else (result, None)
        self._capturing = True
        try:
            result = wrapped(*args, **kwargs)
        finally:
            self._capturing = False
        if not isinstance(result, tuple):
            # No layer was captured on the way; the batch is then recorded as lost.
            return result, None
        with self._guard("adding the state before the norm"):
            return self._with_pre_norm(*result)
        return result

    def _with_pre_norm(self, hidden: torch.Tensor, aux: Any) -> tuple[torch.Tensor, Any]:
        """Return the model's output with the kept state as one more."""
        self._replayed = False
        self._packed = isinstance(aux, torch.Tensor)
        states = [aux] if self._packed else list(aux)
        if self._takes_pre_norm and self._pre_norm is not None:
            states.append(self._pre_norm)
        self._pre_norm = None
        return hidden, states

    def _share_with(self, theirs: list[int]) -> None:
        """Capture our layers and those that SGLang asks for, `theirs`, as SGLang's internal ids."""
        self._theirs = sorted(set(theirs))
        self._captured = sorted({*theirs, *map(internal_id, self.layer_ids)})
        self._choose(self._captured)

    def _choose(self, layers: list[int]) -> None:
        """Have SGLang capture these layers from now on, of those that anybody asked for."""
        self.model.layers_to_capture = list(layers)
        if self.family.marks_layers:
            for layer in self._captured:
                setattr(self.model.layers[layer], LAYER_MARK, layer in layers)

    def _follow(self, name: str, called: Callable[[], None]) -> None:
        """Call `called` after this method of the model, however it went."""
        method = getattr(self.causal_lm, name, None)
        if method is None:
            return

        @functools.wraps(method)
        def followed(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                called()

        setattr(self.causal_lm, name, followed)

    def _count_load(self) -> None:
        self.weight_loads += 1

    def _is_wanted(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether to capture in this pass.

        Without an announced batch it is SGLang's own warm-up or the recording of a CUDA graph: a
        graph for prefill must have the states among its outputs.
        """
        batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[BATCH_ARGUMENT]
        self._recorded = None
        if (
            batch.forward_mode.name == DECODE_MODE
            and DECODE_MODE in self._modes
            and self._graphs is not None
            and batch.rids is None
        ):
            # Nobody's batch, perhaps in the middle of somebody's pass: SGLang makes one up when it
            # records a decode graph, again too.
            self._recorded = batch.input_ids
            return True
        return batch.forward_mode.name in self._modes and self.wants_batch() is not False

    @contextlib.contextmanager
    def _only_theirs(self) -> Iterator[None]:
        self._choose(self._theirs)
        try:
            yield
        finally:
            self._choose(self._captured)

    def _guarded_on_norm(self, _norm: Any, inputs: Args, output: Any) -> None:
        if self._capturing:
            with self._guard("keeping the final state before the norm"):
                self._on_norm(inputs, output)

    def _guarded_on_logits(
        self, _processor: Any, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs]:
        with self._guard("taking the states of a batch"):
            return self._on_logits(args, kwargs)
        return _with_aux(args, kwargs, None)

    def _on_norm(self, inputs: Args, output: Any) -> None:
        """Keep the input of the final norm: later layers of the next pass reuse its memory.

        The fused add-and-norm returns (normed, sum); a norm without a residual gets the sum.
        """
        state = output[1] if isinstance(output, tuple) else inputs[0]
        self._pre_norm = state.clone()

    def _on_logits(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Take our states out of what SGLang's logits processor gets, and hand them over."""
        aux = _aux_of(args, kwargs)
        if aux is None:
            return args, kwargs
        hidden = args[HIDDEN_ARGUMENT] if len(args) > 1 else kwargs["hidden_states"]
        ours, theirs = self._divide(aux, hidden.shape[-1])
        if ours is not None and self._recorded is not None and self._graphs is not None:
            with self._guard("recording a decode graph"):
                self._graphs.record(self._recorded, [*ours, hidden])
        elif ours is not None and self.receive is not None:
            with self._guard("putting the states of a batch into the ring"):
                self.receive(ours, hidden, self._replayed)
        return _with_aux(args, kwargs, theirs)

    def _divide(self, aux: Any, width: int) -> tuple[list[torch.Tensor] | None, Any]:
        """Return our states, if they are all there, and what SGLang would have without us."""
        layers = each_layer(aux, width)
        beyond = len(layers) - len(self._captured)
        if beyond not in {0, int(self._takes_pre_norm)}:
            # A pass in which only SGLang wanted layers.
            return None, aux
        states = dict(zip(self._captured, layers, strict=False))
        ours = None
        if beyond == int(self._takes_pre_norm):
            ours = [states[internal_id(layer)] for layer in self.layer_ids]
            ours += layers[len(self._captured) :]
        theirs = [states[layer] for layer in self._theirs]
        if not theirs:
            return ours, None
        if isinstance(aux, torch.Tensor) and len(theirs) == len(layers):
            # It is SGLang's own tensor: of a pass in which nothing else was captured.
            return ours, aux
        return ours, torch.cat(theirs, dim=-1) if self._packed else theirs


def each_layer(aux: Any, width: int) -> list[torch.Tensor]:
    """Return one [rows, width] tensor per state.

    SGLang hands out a list of them up to 0.5.16, and one tensor with all side by side from 0.5.17.
    """
    states = [aux] if isinstance(aux, torch.Tensor) else aux
    return [layer for state in states for layer in torch.split(state, width, dim=-1)]


def _aux_of(args: Args, kwargs: Kwargs) -> Any:
    if len(args) > AUX_ARGUMENT:
        return args[AUX_ARGUMENT]
    return kwargs.get("aux_hidden_states")


def _with_aux(args: Args, kwargs: Kwargs, aux: Any) -> tuple[Args, Kwargs]:
    if len(args) > AUX_ARGUMENT:
        return (*args[:AUX_ARGUMENT], aux, *args[AUX_ARGUMENT + 1 :]), kwargs
    return args, {**kwargs, "aux_hidden_states": aux}


_attach: Callable[[Any, Family], Attachment] | None = None
_attachment: Attachment | None = None


@contextlib.contextmanager
def attaching(attach: Callable[[Any, Family], Attachment]) -> Iterator[None]:
    """Attach to the model that is built in this block: the served one, not a draft."""
    global _attach
    _attach = attach
    try:
        yield
    finally:
        _attach = None


def attachment() -> Attachment | None:
    """Return our hooks on the served model of this process, if there is one."""
    return _attachment


def around_causal_lm_init(
    wrapped: Callable[..., None], instance: Any, args: Args, kwargs: Kwargs
) -> None:
    """Wrapper of ``__init__`` of a family's class, such as ``DeepseekV2ForCausalLM``."""
    global _attachment
    wrapped(*args, **kwargs)
    if _attach is None:
        return
    family = family_of(type(instance))
    if family is not None and instance.pp_group.is_last_rank:
        _attachment = _attach(instance, family)


def around_model_forward(
    wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Wrapper of ``forward`` of a family's model, such as ``DeepseekV2Model``."""
    if _attachment is None or instance is not _attachment.model:
        return wrapped(*args, **kwargs)
    return _attachment.forward(wrapped, args, kwargs)
