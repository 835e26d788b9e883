"""The numbers about a store: of all captures from the index, of the states from some of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hs_capture.errors import FormatError, HsCaptureError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hs_capture.captured_request import Capture
    from hs_capture.format.run import RunInfo
    from hs_capture.store import CaptureStore

CHANNELS = 8
"""How many of the largest channels are named."""


@dataclass(frozen=True)
class StateNumbers:
    """Of one kind of state: quantiles 0, 1/4, 1/2, 3/4 and 1 of the L2 norms of its rows.

    `channels` pairs the largest channels with the mean of their magnitude; `typical_channel` is
    the median of that mean over all channels.
    """

    name: str
    norms: tuple[float, ...]
    channels: tuple[tuple[int, float], ...]
    typical_channel: float


@dataclass(frozen=True)
class Overview:
    """All of it. Arrays have an element a capture; times are Unix seconds, sizes bytes.

    `reasons` counts incomplete captures. `states` comes from `sampled` complete captures;
    `unreadable` says why others could not be taken, of which `damaged` are damaged and not just
    gone.
    """

    path: Path
    runs: tuple[RunInfo, ...]
    lengths: NDArray[np.int64]
    raw: NDArray[np.int64]
    stored: NDArray[np.int64]
    published: NDArray[np.float64]
    reasons: dict[str, int]
    sampled: int
    states: tuple[StateNumbers, ...]
    unreadable: tuple[str, ...]
    damaged: int

    @property
    def complete(self) -> int:
        """How many captures have all their rows."""
        return len(self.lengths) - sum(self.reasons.values())


def gather(store: CaptureStore, sample: int) -> Overview:
    """Look at the index, and at `sample` complete captures spread over the store: their token ids
    and states are read."""
    entries = list(store.entries())
    complete = [position for position, entry in enumerate(entries) if entry.complete]
    chosen = np.unique(np.linspace(0, len(complete) - 1, min(sample, len(complete))).astype(int))
    collected: dict[str, _Collected] = {}
    unreadable = []
    damaged = 0
    for place in chosen:
        capture = store.at(complete[place])
        try:
            _collect(capture, collected)
        except (HsCaptureError, OSError) as error:
            unreadable.append(str(error))
            damaged += isinstance(error, FormatError)
    return Overview(
        path=store.path,
        runs=store.runs,
        lengths=np.asarray([entry.num_tokens for entry in entries], np.int64),
        raw=np.asarray([entry.raw_bytes for entry in entries], np.int64),
        stored=np.asarray([entry.stored_bytes for entry in entries], np.int64),
        published=np.asarray([entry.published for entry in entries], np.float64),
        reasons=dict(Counter(str(e.incomplete_reason) for e in entries if not e.complete)),
        sampled=len(chosen) - len(unreadable),
        states=tuple(kind.numbers(name) for name, kind in collected.items()),
        unreadable=tuple(unreadable),
        damaged=damaged,
    )


class _Collected:
    """Sums over the rows of one kind of state."""

    def __init__(self, width: int) -> None:
        self._norms: list[torch.Tensor] = []
        self._magnitudes = torch.zeros(width, dtype=torch.float64)

    def add(self, rows: torch.Tensor) -> None:
        exact = rows.to(torch.float32)
        self._norms.append(exact.norm(dim=1))
        self._magnitudes += exact.abs().sum(0, dtype=torch.float64)

    def numbers(self, name: str) -> StateNumbers:
        norms = torch.cat(self._norms)
        means = self._magnitudes / len(norms)
        largest = means.topk(min(CHANNELS, len(means)))
        return StateNumbers(
            name=name,
            norms=tuple(np.quantile(norms.numpy(), (0, 0.25, 0.5, 0.75, 1)).tolist()),
            channels=tuple(zip(largest.indices.tolist(), largest.values.tolist(), strict=True)),
            typical_channel=float(means.median()),
        )


def _collect(capture: Capture, collected: dict[str, _Collected]) -> None:
    # All is read before any is added, or a damaged capture would count in half of the numbers.
    with capture.held_open():
        # No number comes from the ids, but their damage would make the states worthless.
        _ = capture.input_ids
        layers: Sequence[int] = capture.layer_ids
        kinds = {}
        if layers:
            aux = capture.aux_hidden_states()
            kinds = {f"layer {layer}": aux[:, place] for place, layer in enumerate(layers)}
        for state in capture.metadata["final"]:
            kinds[f"final, {state.replace('_', '-')}"] = capture.last_hidden_states(state)
    for name, rows in kinds.items():
        collected.setdefault(name, _Collected(rows.shape[1])).add(rows)
