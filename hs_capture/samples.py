"""samples.jsonl: which sample of a training set each capture of a store belongs to.

One line a sample, appended when its capture is in the store. A line is a JSON object, of which no
part is one too: so the last line counts if it is one, with or without a line end, which editors and
scripts may leave out; else it was never finished. A capture file cannot say this itself: the server
that wrote it knew neither the sample nor its loss mask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from hs_capture.errors import FormatError
from hs_capture.format.record import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLES_FILE = "samples.jsonl"

Runs = tuple[tuple[int, int], ...]
"""The tokens that a loss mask selects, as ascending [start, stop) pairs that do not touch."""


@dataclass(frozen=True)
class Sample:
    """One sample: `number` is its place in the input, from 0, `id` its name there.

    `next_token` is what the model found most likely to follow, None where that is not known.
    """

    number: int
    id: str
    rid: str
    loss_mask: Runs
    next_token: int | None = None

    def mask(self, tokens: int) -> NDArray[np.int64]:
        """The loss mask of a prompt of `tokens` tokens, int64 [tokens] of zeros and ones.

        Raises `FormatError` when it selects a token that the prompt does not have.
        """
        if self.loss_mask and self.loss_mask[-1][1] > tokens:
            raise FormatError(
                f"sample {self.number} (rid {self.rid!r}): its loss mask selects token "
                f"{self.loss_mask[-1][1] - 1} of {tokens}"
            )
        mask = np.zeros(tokens, np.int64)
        for start, stop in self.loss_mask:
            mask[start:stop] = 1
        return mask


def default_mask(tokens: int, prompt_tokens: int) -> NDArray[np.int64]:
    """The loss mask of `tokens` tokens of which nobody says which count, int64 [tokens].

    Those that were generated behind the prompt, or all where none was.
    """
    mask = np.ones(tokens, np.int64)
    if prompt_tokens < tokens:
        mask[:prompt_tokens] = 0
    return mask


@dataclass(frozen=True)
class _Line(Record):
    id: str
    sample: int
    rid: str
    loss_mask: Runs
    next_token: int | None = None


def runs_of(mask: Sequence[int] | NDArray[Any]) -> Runs:
    """The runs of nonzero elements of a loss mask [tokens]."""
    chosen = np.asarray(mask).astype(bool).astype(np.int8)
    edges = np.flatnonzero(np.diff(chosen, prepend=0, append=0)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def append_line(sample: Sample) -> bytes:
    """The line for `sample`, to be appended in one write."""
    line = _Line(sample.id, sample.number, sample.rid, sample.loss_mask, sample.next_token)
    return line.to_json() + b"\n"


def read_samples(folder: str | os.PathLike[str]) -> dict[str, Sample] | None:
    """The samples of the store at `folder` by rid, in the order of the file.

    None where there is no samples.jsonl. Of two lines with one rid the later holds. An unfinished
    last line is passed over; any other that is broken raises `FormatError` with its number.
    """
    try:
        return {sample.rid: sample for sample in iterate_samples(folder)}
    except FileNotFoundError:
        return None


def iterate_samples(folder: str | os.PathLike[str]) -> Iterator[Sample]:
    """The samples of the store at `folder`, one a line; errors as for `read_samples`.

    Raises `FileNotFoundError` where there is no samples.jsonl.
    """
    path = Path(folder) / SAMPLES_FILE
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") or _is_whole(line):
                yield _sample(line, f"{path}: line {number}")


def end_last_line(path: Path) -> None:
    """Give the last line of a samples.jsonl its line end, if it lacks that alone.

    For the one process that appends, before it cuts off what was never finished.
    """
    last = b"\n"
    with path.open("rb") as file:
        for line in file:
            last = line
    if not last.endswith(b"\n") and _is_whole(last):
        with path.open("ab") as file:
            file.write(b"\n")


def _is_whole(line: bytes) -> bool:
    """Whether a last line without a line end is more than the beginning of one."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _sample(data: bytes, place: str) -> Sample:
    line = _Line.from_json(data, place)
    bounds = [0, *(edge for run in line.loss_mask for edge in run)]
    ascending = all(start < stop for start, stop in line.loss_mask)
    if line.sample < 0 or not ascending or any(a > b for a, b in pairwise(bounds)):
        raise FormatError(
            f"{place}: sample {line.sample} with loss mask {line.loss_mask!r}: expected a number "
            "of 0 or more, and ascending [start, stop) pairs"
        )
    return Sample(line.sample, line.id, line.rid, line.loss_mask, line.next_token)
