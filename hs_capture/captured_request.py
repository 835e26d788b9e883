"""Reading one capture: what it says of its request, and the states of the rows asked for."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from hs_capture.counted import count_text
from hs_capture.errors import FormatError, NotCapturedError
from hs_capture.format.codec import dtype_of
from hs_capture.format.metadata import (
    INPUT_IDS,
    POST_NORM,
    PRE_NORM,
    TOLD_BY_INDEX_TOO,
    CaptureMetadata,
    layer_stream,
)
from hs_capture.intervals import union
from hs_capture.linked_rows import LinkedReader
from hs_capture.norm import apply_norm
from hs_capture.tensors import to_tensor, torch_dtype

if TYPE_CHECKING:
    import torch

    from hs_capture.format.index import IndexEntry
    from hs_capture.format.links import Source
    from hs_capture.format.run import RunInfo

Rows: TypeAlias = slice | tuple[int, int] | None
"""Which tokens: all of them, a slice without a step, or a [start, stop) pair."""

FinalState: TypeAlias = Literal["pre_norm", "post_norm"]


class Capture:
    """The hidden states of one request's T tokens: its prompt, and what it generated if wanted.

    Cheap to hold and to pickle: the file is opened for each question that needs it, and closed
    again. Damage shows as `FormatError`, a file that is gone as `FileNotFoundError`.

    Rows that the server had in its prefix cache may be in the files of other captures. They count
    as rows of this one while those files are there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        entry: IndexEntry,
        run: RunInfo | None,
        sources: tuple[Source, ...] = (),
    ) -> None:
        """`entry` counts the rows that `sources` have as rows of the capture."""
        self.file = os.fspath(path)
        """`path` as a string."""
        self.run = run
        self._entry = entry
        self._sources = sources
        self._held: LinkedReader | None = None

    def __repr__(self) -> str:
        state = "complete" if self.complete else f"incomplete: {self.incomplete_reason}"
        return f"Capture({self.rid!r}, {count_text(self.num_tokens, 'token')}, {state})"

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    @property
    def rid(self) -> str:
        return self._entry.rid

    @property
    def sequence(self) -> int:
        """The number of this capture in its run."""
        return self._entry.sequence

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens, captured or not."""
        return self._entry.num_tokens

    @property
    def prompt_tokens(self) -> int:
        """How many of them are the prompt; those behind it were generated."""
        known = self._entry.prompt_tokens
        return self.num_tokens if known is None else known

    @property
    def complete(self) -> bool:
        """Whether all T rows can be had."""
        return self._entry.complete

    @property
    def incomplete_reason(self) -> str | None:
        return self._entry.incomplete_reason

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The rows that cannot be had, as [start, stop) pairs."""
        return list(self._entry.missing)

    @property
    def weights_version(self) -> int:
        """How often the server's weights had been changed when these states were computed."""
        return self._entry.weights_version

    @property
    def lora(self) -> str | None:
        """The LoRA adapter that the request asked for, by its name in the server."""
        return self._entry.lora

    @property
    def metadata(self) -> dict[str, Any]:
        """Everything the file says about itself, and `sources`: who has others of its rows.

        Each source has `rid`, `file`, and `start` and `stop` of the rows. `complete`, `missing` and
        `incomplete_reason` are about the rows in its own file here.
        """
        sources = [
            {"rid": s.rid, "file": s.file, "start": s.start, "stop": s.stop} for s in self._sources
        ]
        return {**self._described[0], "sources": sources}

    @property
    def layer_ids(self) -> list[int]:
        """The layers that `aux_hidden_states` returns, in its order; -1 is the embedding."""
        return list(self._described[1].layer_ids)

    @property
    def hidden_size(self) -> int:
        """H, the number of elements of one state."""
        return self._described[1].hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the states, as the model computed them."""
        return torch_dtype(self._described[1].dtype)

    @property
    def input_ids(self) -> torch.Tensor:
        """The token ids of prompt and answer, int64 [T], also where states are missing."""
        with self._open() as reader:
            return to_tensor(reader.read(INPUT_IDS, 0, self.num_tokens), "int64")

    def aux_hidden_states(
        self, rows: Rows = None, layers: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The outputs of K layers, [rows, K, H] in the model's dtype.

        K follows `layers`, by default `layer_ids`. Only the blocks that hold these rows of these
        layers are decoded. Raises `NotCapturedError` for a layer or a row that was not captured,
        `IndexError` for a pair of rows beyond the end, `ValueError` for a slice with a step,
        `TypeError` for `rows` of another type.
        """
        metadata = self._described[1]
        chosen = tuple(metadata.layer_ids if layers is None else layers)
        if not chosen or not set(chosen) <= set(metadata.layer_ids):
            raise NotCapturedError(
                f"capture {self.rid!r}: layers {list(chosen)} asked for, "
                f"captured are {list(metadata.layer_ids)}"
            )
        start, stop = self._rows(rows)
        carrier = dtype_of(metadata.dtype).carrier
        states = np.empty((stop - start, len(chosen), metadata.hidden_size), carrier)
        with self._open() as reader:
            for position, layer in enumerate(chosen):
                states[:, position] = reader.read(layer_stream(layer), start, stop)
        return to_tensor(states, metadata.dtype)

    def last_hidden_states(self, state: FinalState, rows: Rows = None) -> torch.Tensor:
        """The final states before ("pre_norm") or after ("post_norm") the final norm, [rows, H].

        A stored state is returned as it was stored. Post-norm states that were not stored are
        derived from the pre-norm ones with the norm of the run (see `hs_capture.norm`), that of the
        capture's `weights_version`;
        `metadata["final"]` names the stored ones. Errors as for `aux_hidden_states`.
        """
        if state not in ("pre_norm", "post_norm"):
            raise ValueError(f"final state {state!r}: expected 'pre_norm' or 'post_norm'")
        metadata = self._described[1]
        start, stop = self._rows(rows)
        norm = self.run.norm_of(self.weights_version) if self.run is not None else None
        with self._open() as reader:
            if state in metadata.final:
                name = PRE_NORM if state == "pre_norm" else POST_NORM
                return to_tensor(reader.read(name, start, stop), metadata.dtype)
            if state == "post_norm" and "pre_norm" in metadata.final and norm is not None:
                hidden = to_tensor(reader.read(PRE_NORM, start, stop), metadata.dtype)
                return apply_norm(hidden, norm)
        lacking = "" if state == "pre_norm" or norm else "; there is no run.json with a norm either"
        raise NotCapturedError(
            f"capture {self.rid!r}: {state} states were not captured; "
            f"captured are {list(metadata.final)}{lacking}"
        )

    @cached_property
    def _described(self) -> tuple[dict[str, Any], CaptureMetadata]:
        with self._open() as reader:
            place = f"{self.file}: metadata"
            metadata = CaptureMetadata.from_object(reader.metadata, place)
            elsewhere = [(source.start, source.stop) for source in self._sources]
            for name in TOLD_BY_INDEX_TOO:
                said, indexed = getattr(metadata, name), getattr(self._entry, name)
                if name == "missing":
                    said, indexed = union(said), union([*indexed, *elsewhere])
                if said != indexed:
                    raise FormatError(
                        f"{place}: {name} is {said!r}, but the index says {indexed!r}; remove the "
                        "index to have it read from the files"
                    )
            self._check_shapes(reader, metadata)
            return reader.metadata, metadata

    def _check_shapes(self, reader: LinkedReader, metadata: CaptureMetadata) -> None:
        if metadata.rows_behind not in (0, 1):
            raise FormatError(f"{self.file}: rows_behind is {metadata.rows_behind}, not 0 or 1")
        rows = metadata.num_tokens + metadata.rows_behind
        states = (metadata.dtype, (rows, metadata.hidden_size))
        expected: dict[str, tuple[str, tuple[int, ...]]] = {INPUT_IDS: ("int64", (rows,))}
        expected |= {layer_stream(layer): states for layer in metadata.layer_ids}
        expected |= {f"final.{state}": states for state in metadata.final}
        for name, want in expected.items():
            stream = reader.streams.get(name)
            found = (stream.dtype, stream.shape) if stream is not None else None
            if found != want:
                raise FormatError(
                    f"{self.file}: stream {name!r} is {found}, the metadata promise {want}"
                )

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Open the files once for all questions inside the ``with``, asked by one thread."""
        with LinkedReader(self.file, self._sources) as reader:
            self._held = reader
            try:
                yield
            finally:
                self._held = None

    def _open(self) -> AbstractContextManager[LinkedReader]:
        if self._held is not None:
            return nullcontext(self._held)
        return LinkedReader(self.file, self._sources)

    def _rows(self, rows: Rows) -> tuple[int, int]:
        """`rows` as a [start, stop) pair of rows that were all captured."""
        start, stop = _bounds(rows, self.num_tokens)
        for begin, end in self.missing:
            if max(begin, start) < min(end, stop):
                raise NotCapturedError(
                    f"capture {self.rid!r}: rows [{start}, {stop}) asked for, but rows "
                    f"[{begin}, {end}) were not captured ({self.incomplete_reason}); "
                    f"missing are {self.missing} of {self.num_tokens}"
                )
        return start, stop


def _bounds(rows: Rows, length: int) -> tuple[int, int]:
    if rows is None:
        return 0, length
    if isinstance(rows, slice):
        start, stop, step = rows.indices(length)
        if step != 1:
            raise ValueError(f"rows {rows}: a step is not supported")
        return start, max(start, stop)
    try:
        start, stop = map(operator.index, rows)
    except (TypeError, ValueError):
        raise TypeError(
            f"rows is {rows!r}: expected None for all, a slice, or a (start, stop) pair of whole "
            "numbers"
        ) from None
    if not 0 <= start <= stop <= length:
        raise IndexError(f"rows [{start}, {stop}) are not within the {length} tokens")
    return start, stop
