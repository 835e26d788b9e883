"""A torch Dataset over the complete captures of a store, for a trainer of one's own."""

from __future__ import annotations

import operator
import os
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch.utils.data import Dataset

from hs_capture.captured_request import Capture
from hs_capture.errors import ConfigError, FormatError
from hs_capture.format.catalog import describe
from hs_capture.format.links import with_rows_of
from hs_capture.packed import PackedRuns, PackedSources, PackedStrings
from hs_capture.samples import Sample, default_mask
from hs_capture.selection import select
from hs_capture.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hs_capture.captured_request import FinalState
    from hs_capture.store import CaptureStore


class Item(TypedDict):
    """One sample of T tokens, K layers and hidden size H.

    `input_ids` and `loss_mask` are int64 [T], `aux_hidden_states` is [T, K, H] and
    `last_hidden_states` [T, H] in the model's dtype.
    """

    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    aux_hidden_states: torch.Tensor
    last_hidden_states: torch.Tensor


class HiddenStatesDataset(Dataset[Item]):
    """The newest complete capture of every rid; with a samples.jsonl, of every sample in order.

    Without one the loss mask selects generated tokens, where they were captured, and else all.

    Opening reads the index and no capture file. It is cheap to pickle and shares nothing between
    processes, so any number of data loader workers may read it, forked or spawned. Samples differ
    in length: a loader needs a ``collate_fn``, or batches of one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        final: FinalState,
        layers: Sequence[int] | None = None,
        rids: str | None = None,
        weights_version: int | None = None,
    ) -> None:
        """Open the store at `path`.

        Args:
            path: a dump directory, one run, or any folder of captures.
            final: the norm of `last_hidden_states`, "pre_norm" or "post_norm".
            layers: ids of the layers to give, in this order; all captured ones by default.
            rids: a shell pattern; other rids are left out.
            weights_version: the weights, where they were changed while the server ran.

        Raises:
            StoreNotFoundError: there are no captures at all.
            ConfigError: there is no complete one, they are of several models, choices of layers or
                weights, another folder has their samples.jsonl, or `final` is no norm.
            FormatError: the store is damaged.
        """
        if final not in ("pre_norm", "post_norm"):
            raise ConfigError(f"final={final!r}: expected 'pre_norm' or 'post_norm'")
        store = open_store(path)
        selection = select(store, rids, weights_version, layers_are_chosen=layers is not None)
        if not selection.positions:
            raise ConfigError(f"{store.path}: no complete capture among {len(store)}")
        self.final = final
        self.layers = None if layers is None else tuple(layers)
        self.left_out = selection.left_out
        """How many captures and samples are not in the dataset, by reason."""
        self._folder = store.path
        self._pack(store, selection.positions)
        samples = selection.samples
        self._ids = None if samples is None else PackedStrings(sample.id for sample in samples)
        self._masks = None if samples is None else PackedRuns(s.loss_mask for s in samples)

    def _pack(self, store: CaptureStore, positions: list[int]) -> None:
        found = [store.find_entry(position) for position in positions]
        catalogs = {id(catalog): catalog for catalog, _ in found}
        numbers = {key: number for number, key in enumerate(catalogs)}
        self._catalogs = [(catalog.directory, catalog.run) for catalog in catalogs.values()]
        self._catalog_of = np.asarray([numbers[id(catalog)] for catalog, _ in found], np.int32)
        self._files = PackedStrings(str(entry.file) for _, entry in found)
        self._rids = PackedStrings(entry.rid for _, entry in found)
        self._sources = PackedSources(catalog.sources.of(entry) for catalog, entry in found)
        self.lengths = np.asarray([entry.num_tokens for _, entry in found], np.int64)
        """T of each sample, int64: for batches of like length, without reading any."""
        prompts = (e.num_tokens if e.prompt_tokens is None else e.prompt_tokens for _, e in found)
        self._prompts = np.fromiter(prompts, np.int64, len(found))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Item:
        """Sample `index`; errors as for `Capture`, and `FormatError` where the mask is longer."""
        index = self._checked(index)
        capture = self.capture(index)
        with capture.held_open():
            return {
                "input_ids": capture.input_ids,
                "loss_mask": self._loss_mask(index),
                "aux_hidden_states": capture.aux_hidden_states(layers=self.layers),
                "last_hidden_states": capture.last_hidden_states(self.final),
            }

    def __repr__(self) -> str:
        return f"HiddenStatesDataset({str(self._folder)!r}, {len(self)} samples, {self.final})"

    def id(self, index: int) -> str:
        """The name of a sample in the input; the rid where the store has no samples.jsonl."""
        index = self._checked(index)
        return self._rids[index] if self._ids is None else self._ids[index]

    def capture(self, index: int) -> Capture:
        """The capture of a sample, as its own file describes it, with the rows of its sources.

        Raises `FormatError` when another file is there than the one that was opened.
        """
        index = self._checked(index)
        directory, run = self._catalogs[self._catalog_of[index]]
        file = self._files[index]
        sources = self._sources[index]
        entry = with_rows_of(describe(directory, file), sources)
        expected = (self._rids[index], int(self.lengths[index]), True)
        if (entry.rid, entry.num_tokens, entry.complete) != expected:
            raise FormatError(
                f"{os.path.join(directory, file)}: rid, tokens and completeness are "
                f"{(entry.rid, entry.num_tokens, entry.complete)!r}, and were {expected!r} when "
                "the dataset was opened; open it again"
            )
        return Capture(
            os.path.join(directory, file),
            entry,
            run,
            tuple(replace(s, file=os.path.join(directory, s.file)) for s in sources),
        )

    def _loss_mask(self, index: int) -> torch.Tensor:
        tokens = int(self.lengths[index])
        if self._masks is None:
            return torch.from_numpy(default_mask(tokens, int(self._prompts[index])))
        sample = Sample(index, self.id(index), self._rids[index], self._masks[index])
        return torch.from_numpy(sample.mask(tokens))

    def _checked(self, index: int) -> int:
        place = operator.index(index)
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return place
