"""Replays of a CUDA graph, emulated on the CPU: rows come in buffers that the next one writes to.

SGLang records the model's forward once for each size of batch, in mode EXTEND and before any
request is known. To replay it, it fills the recorded input, padding included, and runs the
kernels. The outputs are views of one buffer for all sizes. Of our hooks only that on the logits
processor runs then. Here torch's tracer records the operators in place of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from capture_server import HIDDEN, LAYERS, CaptureServer
from hs_capture.capture.batch import Batch, Request, batch_of
from hs_capture.hooks.decode_graphs import DecodeGraphs
from hs_capture.hooks.families import DEEPSEEK_V2
from hs_capture.hooks.guard import Guard
from hs_capture.hooks.model import Attachment

DEPTH, VOCABULARY = 6, 1000
SIZES = (32, 16, 8)
"""Rows of the recorded graphs, the largest first, as SGLang records them."""
CHUNK = 20


class Norm(torch.nn.Module):
    """RMSNorm as SGLang's: it adds the residual first, and returns the sum as well."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(HIDDEN))

    def forward(
        self, states: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = states + residual
        return torch.nn.functional.rms_norm(total, (HIDDEN,), self.weight, 1e-6), total


class Model(torch.nn.Module):
    """Captures as SGLang's model does: the input of a layer, in a list or packed."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(DEPTH))
        self.norm = Norm()
        self.packed = packed
        self.layers_to_capture: list[int] = []

    def forward(self, input_ids: torch.Tensor, _positions: None, _batch: Any) -> Any:
        residual = self.embed_tokens(input_ids)
        states = torch.zeros_like(residual)
        aux = []
        for number, layer in enumerate(self.layers):
            residual = states + residual
            if number in self.layers_to_capture:
                aux.append(residual.clone())
            states = torch.tanh(layer(residual))
        hidden, _ = self.norm(states, residual)
        if not aux:
            return hidden
        return hidden, torch.cat(aux, dim=-1) if self.packed else aux


class LogitsProcessor(torch.nn.Module):
    """Keeps what it is given, as SGLang's is called."""

    def forward(
        self, input_ids: Any, hidden: torch.Tensor, lm_head: Any, batch: Any, aux: Any = None
    ) -> None:
        self.hidden, self.aux = hidden.clone(), aux


class CausalLM(torch.nn.Module):
    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.model = Model(packed)
        self.logits_processor = LogitsProcessor()
        self.capture_aux_hidden_states = False

    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = list(ids)


class Graphs:
    """The model's forward, recorded for each size, with one output buffer for all of them."""

    def __init__(self, forward: Callable[[torch.Tensor], Any]) -> None:
        self._recorded = {size: make_fx(forward)(torch.zeros(size).long()) for size in SIZES}
        self._output = self._recorded[SIZES[0]](torch.zeros(SIZES[0]).long())

    def replay(self, input_ids: torch.Tensor) -> Any:
        """Run the recorded operators; return views of the buffer, with the padding."""
        size = min(size for size in SIZES if size >= len(input_ids))
        # Ordinary tokens as padding: its rows look like any others.
        padded = torch.randint(VOCABULARY, (size,))
        padded[: len(input_ids)] = input_ids
        _copy(self._recorded[size](padded), self._output)
        return _cut(self._output, size)


def _copy(source: Any, target: Any) -> None:
    if isinstance(source, torch.Tensor):
        target[: len(source)].copy_(source)
    elif source is not None:
        for item, buffer in zip(source, target, strict=True):
            _copy(item, buffer)


def _cut(output: Any, rows: int) -> Any:
    if isinstance(output, torch.Tensor):
        return output[:rows]
    return None if output is None else type(output)(_cut(item, rows) for item in output)


def forward_batch(mode: str, rids: Any = None, input_ids: Any = None) -> Any:
    return SimpleNamespace(forward_mode=SimpleNamespace(name=mode), rids=rids, input_ids=input_ids)


def request(key: int, length: int) -> Request:
    ids = np.random.default_rng(key).integers(0, VOCABULARY, length)
    return Request(key, f"r{key}", ids, cached_tokens=0)


def attached(packed: bool) -> tuple[CausalLM, Attachment]:
    """A model of the same weights each time, with our hooks."""
    torch.manual_seed(0)
    causal_lm = CausalLM(packed).requires_grad_(False)
    return causal_lm, Attachment(causal_lm, DEEPSEEK_V2, LAYERS, True, Guard())


def recorded(causal_lm: CausalLM, attachment: Attachment, mode: str) -> Graphs:
    """Record the model as SGLang sees it, wrapped, without a batch that was announced."""
    model = causal_lm.model
    return Graphs(
        lambda ids: attachment.forward(model.forward, (ids, None, forward_batch(mode)), {})
    )


def run(causal_lm: CausalLM, attachment: Attachment, graphs: Graphs, ids: torch.Tensor) -> None:
    """Do what SGLang does around a replay."""
    attachment.begin_pass()
    hidden, aux = graphs.replay(ids)
    causal_lm.logits_processor(ids, hidden, None, forward_batch("EXTEND"), aux)


def ids_of(batch: Batch) -> torch.Tensor:
    parts = [rows.request.input_ids[rows.start : rows.stop] for rows in batch.rows]
    return torch.from_numpy(np.concatenate(parts))


def eager(causal_lm: CausalLM, ids: torch.Tensor, layers: tuple[int, ...]) -> list[torch.Tensor]:
    """The states of `ids`: each layer's input by SGLang's id, then before and after the norm."""
    plain = Model(packed=False)
    plain.load_state_dict(causal_lm.model.state_dict())
    plain.layers_to_capture = list(layers)
    totals: list[torch.Tensor] = []
    plain.norm.register_forward_hook(lambda _norm, _inputs, output: totals.append(output[1]))
    with torch.no_grad():
        hidden, aux = plain.forward(ids, None, None)
    return [*aux, totals[0], hidden]


@pytest.mark.parametrize("packed", [False, True], ids=["list", "packed"])
@pytest.mark.parametrize(
    ("theirs", "late"), [([], False), ([2, 3], True)], ids=["alone", "with-a-drafter-and-late"]
)
def test_replayed_rows_are_stored_before_the_next_replay_writes_over_them(
    tmp_path: Path, packed: bool, theirs: list[int], late: bool
) -> None:
    """Chunks of several prompts, in graphs of all sizes; padding is no row of anybody."""
    causal_lm, attachment = attached(packed)
    if theirs:
        causal_lm.set_eagle3_layers_to_capture(theirs)
    graphs = recorded(causal_lm, attachment, "EXTEND")
    prompts = [request(key, length) for key, length in enumerate((45, 3, 25, 8, 31))]
    with CaptureServer(tmp_path, late_planes=late) as server:
        flags = []
        for batch in _passes(prompts):

            def receive(
                states: list[torch.Tensor], _post: torch.Tensor, reused: bool, batch: Batch = batch
            ) -> None:
                server.tap.capture(batch, states)
                flags.append(reused)

            attachment.receive = receive
            run(causal_lm, attachment, graphs, ids_of(batch))
            states = eager(causal_lm, ids_of(batch), tuple(theirs) or (1,))
            given = causal_lm.logits_processor
            assert_close(given.hidden[: batch.total_rows], states[-1])
            if not theirs:
                assert given.aux is None
                continue
            aux = [given.aux] if isinstance(given.aux, torch.Tensor) else given.aux
            rows = torch.cat(list(aux), dim=-1)[: batch.total_rows]
            assert_close(rows, torch.cat(states[: len(theirs)], dim=-1))
        assert flags == [True] * len(_passes(prompts))
        server.wait_drained()
    store = server.store()
    for prompt in prompts:
        capture = store[prompt.rid]
        assert capture.complete
        assert capture.input_ids.tolist() == prompt.input_ids.tolist()
        inner = tuple(layer + 1 for layer in LAYERS)
        *layers, pre_norm, _ = eager(causal_lm, torch.from_numpy(prompt.input_ids), inner)
        assert_close(capture.aux_hidden_states(), torch.stack(layers, 1))
        assert_close(capture.last_hidden_states("pre_norm"), pre_norm)


def test_a_graph_that_was_recorded_for_decoding_hands_nothing_over() -> None:
    """Decoding pays nothing: its graphs have no captured layer among their kernels."""
    causal_lm, attachment = attached(packed=True)
    graphs = recorded(causal_lm, attachment, "DECODE")
    received: list[Any] = []
    attachment.receive = lambda *given: received.append(given)
    ids = torch.arange(5)
    run(causal_lm, attachment, graphs, ids)
    assert received == []
    assert causal_lm.logits_processor.aux is None
    assert_close(causal_lm.logits_processor.hidden[:5], eager(causal_lm, ids, (1,))[-1])


def test_an_eager_pass_between_replays_is_told_apart() -> None:
    """Only rows in a buffer of a graph need protection from the next pass."""
    causal_lm, attachment = attached(packed=True)
    graphs = recorded(causal_lm, attachment, "EXTEND")
    reused = []
    attachment.receive = lambda _states, _hidden, flag: reused.append(flag)
    ids = torch.arange(5)
    run(causal_lm, attachment, graphs, ids)
    attachment.begin_pass()
    model, batch = causal_lm.model, forward_batch("EXTEND")
    hidden, aux = attachment.forward(model.forward, (ids, None, batch), {})
    causal_lm.logits_processor(ids, hidden, None, batch, aux)
    run(causal_lm, attachment, graphs, ids)
    assert reused == [True, False, True]


class DecodeReplays:
    """The whole of a model, its head too, recorded for each size, as SGLang does for decoding.

    None of our hooks runs when one is replayed: only operators that were recorded do.
    """

    def __init__(self, causal_lm: CausalLM, attachment: Attachment, sizes: Sequence[int]) -> None:
        self._causal_lm, self._attachment = causal_lm, attachment
        self._recorded = {}
        for size in sizes:
            # Warm-ups come first, on tensors that are given to somebody else afterwards.
            self._run_once(torch.zeros(size).long())
            self._recorded[size] = self._record(torch.zeros(size).long())

    def _record(self, ids: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def run_once(ids: torch.Tensor) -> torch.Tensor:
            return self._run_once(ids)

        recording.append(True)
        try:
            found: Callable[[torch.Tensor], torch.Tensor] = make_fx(run_once)(ids)
        finally:
            recording.pop()
        return found

    def _run_once(self, ids: torch.Tensor) -> torch.Tensor:
        model, batch = self._causal_lm.model, forward_batch("DECODE", input_ids=ids)
        hidden, aux = self._attachment.forward(model.forward, (ids, None, batch), {})
        self._causal_lm.logits_processor(ids, hidden, None, batch, aux)
        states: torch.Tensor = hidden
        return states

    def replay(self, input_ids: torch.Tensor) -> torch.Tensor:
        size = min(size for size in self._recorded if size >= len(input_ids))
        padded = torch.randint(VOCABULARY, (size,))
        padded[: len(input_ids)] = input_ids
        return self._recorded[size](padded)[: len(input_ids)]


recording: list[bool] = []
"""Not empty while operations are recorded."""


def decoding_attachment(packed: bool) -> tuple[CausalLM, Attachment]:
    torch.manual_seed(0)
    causal_lm = CausalLM(packed).requires_grad_(False)
    graphs = DecodeGraphs(lambda: bool(recording))
    modes = frozenset({"EXTEND", "DECODE"})
    return causal_lm, Attachment(causal_lm, DEEPSEEK_V2, LAYERS, True, Guard(), modes, graphs)


@pytest.mark.parametrize("packed", [False, True], ids=["list", "packed"])
def test_a_replayed_decode_graph_leaves_its_states_and_its_tokens(packed: bool) -> None:
    """Of all sizes, in one set of buffers, each time those of the last replay."""
    causal_lm, attachment = decoding_attachment(packed)
    replays = DecodeReplays(causal_lm, attachment, SIZES)
    received: list[Any] = []
    attachment.receive = lambda *given: received.append(given)
    places = set()
    for count in (5, 32, 1, 16, 9, 20):
        attachment.begin_pass()
        ids = torch.randint(VOCABULARY, (count,))
        hidden = replays.replay(ids)
        left = attachment.replayed_decode()
        assert left is not None
        tokens, states = left
        assert tokens[:count].tolist() == ids.tolist()
        inner = tuple(layer + 1 for layer in LAYERS)
        expected = eager(causal_lm, ids, inner)
        assert len(states) == len(expected)
        for found, state in zip(states, expected, strict=True):
            assert_close(found[:count], state)
        assert_close(hidden, expected[-1])
        places |= {state.data_ptr() for state in states}
    assert len(places) == len(LAYERS) + 2
    assert received == []
    assert attachment._guard._faults.count == 0


def test_a_pass_that_ran_is_no_replay() -> None:
    """What the last replay left is not taken for its states, wanted or not."""
    causal_lm, attachment = decoding_attachment(packed=True)
    replays = DecodeReplays(causal_lm, attachment, SIZES)
    replays.replay(torch.arange(4))
    wants, received = [True], []
    attachment.wants_batch = lambda: wants[0]
    attachment.receive = lambda *given: received.append(given)
    for wanted in (True, False):
        wants[0] = wanted
        attachment.begin_pass()
        ids = torch.arange(7)
        batch = forward_batch("DECODE", rids=["a"] * 7, input_ids=ids)
        hidden, aux = attachment.forward(causal_lm.model.forward, (ids, None, batch), {})
        causal_lm.logits_processor(ids, hidden, None, batch, aux)
        assert attachment.replayed_decode() is None
    assert len(received) == 1
    ours, _, reused = received[0]
    assert not reused
    assert_close(ours[0], eager(causal_lm, torch.arange(7), (LAYERS[0] + 1,))[0])


def test_a_graph_that_is_recorded_while_a_batch_runs_hands_nothing_over() -> None:
    """SGLang records graphs again when they have to return more."""
    causal_lm, attachment = decoding_attachment(packed=True)
    attachment.wants_batch = lambda: True
    received: list[Any] = []
    attachment.receive = lambda *given: received.append(given)
    attachment.begin_pass()
    DecodeReplays(causal_lm, attachment, SIZES)
    assert received == []


def test_a_graph_that_is_larger_than_the_first_has_nothing_taken_from_any() -> None:
    causal_lm, attachment = decoding_attachment(packed=True)
    replays = DecodeReplays(causal_lm, attachment, (8, 16))
    assert attachment._guard._faults.count == 1
    attachment.begin_pass()
    replays.replay(torch.arange(5))
    assert attachment.replayed_decode() is None


def test_nothing_is_left_where_nothing_was_recorded() -> None:
    """Passes that only warm up leave buffers, and no states."""
    causal_lm, attachment = decoding_attachment(packed=True)
    attachment.begin_pass()
    assert attachment.replayed_decode() is None
    batch = forward_batch("DECODE", input_ids=torch.arange(4))
    hidden, aux = attachment.forward(causal_lm.model.forward, (torch.arange(4), None, batch), {})
    causal_lm.logits_processor(None, hidden, None, batch, aux)
    attachment.begin_pass()
    assert attachment.replayed_decode() is None


def _passes(prompts: list[Request]) -> list[Batch]:
    """Cut the prompts, one behind the other, into passes of at most `CHUNK` rows."""
    passes: list[list[tuple[Request, int, int]]] = [[]]
    room = CHUNK
    for prompt in prompts:
        start = 0
        while start < prompt.num_tokens:
            extend = min(room, prompt.num_tokens - start)
            passes[-1].append((prompt, start, extend))
            start += extend
            room -= extend
            if room == 0:
                passes.append([])
                room = CHUNK
    return [batch_of(extents) for extents in passes if extents]


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
