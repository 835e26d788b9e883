"""What a format is, and the table of them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture.errors import ConfigError, FormatError
from hs_capture.samples import default_mask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hs_capture.captured_request import Capture, FinalState
    from hs_capture.export.sample import TrainingSample
    from hs_capture.samples import Sample

_PER_FOLDER = 2000


@dataclass(frozen=True)
class Row:
    """One exported sample, without its states. `number` is the one in its file's name."""

    number: int
    capture: Capture
    sample: Sample | None

    @property
    def tokens(self) -> int:
        """T, the number of tokens."""
        return self.capture.num_tokens

    def input_ids(self) -> NDArray[np.int64]:
        """The token ids, int64 [T], read from the capture."""
        ids: NDArray[np.int64] = self.capture.input_ids.numpy()
        return ids

    def loss_mask(self) -> NDArray[np.int64]:
        """The loss mask, int64 [T]: the default where no sample is known."""
        if self.sample is None:
            return default_mask(self.tokens, self.capture.prompt_tokens)
        return self.sample.mask(self.tokens)


@dataclass(frozen=True)
class Context:
    """What the files of one export have in common. `layer_ids` are ours: outputs, from 0.

    `about` are words for formats that have a place for them: model, versions, conventions.
    """

    layer_ids: tuple[int, ...]
    state: FinalState
    about: dict[str, str]
    hidden_size: int
    dtype: str

    def require_same(self, capture: Capture) -> None:
        """Raise `FormatError` for a capture that was taken in another way."""
        found = capture.metadata
        here = (found["hidden_size"], found["dtype"])
        if here != (self.hidden_size, self.dtype):
            raise FormatError(
                f"{capture.path}: hidden size and dtype are {here}, those of the first capture "
                f"are {(self.hidden_size, self.dtype)}; export them into folders of their own"
            )


@dataclass(frozen=True)
class Format:
    """How one trainer wants its files.

    Attributes:
        states: the final states that the format can express, the trainer's own first.
        layers: how many layers it takes, None for any number of one or more.
        inputs: whether the trainer's id of a layer counts inputs; it is then one above ours.
        file_name: the path of a sample's file below the output folder, by the sample's number.
        dense: whether numbers must be 0, 1, 2, ... without a hole; else they are the samples' own.
        write: put one sample into a new file.
        close: write what belongs to the folder as a whole, once all samples are there.
        closing_file: what `close` writes last, below the output folder, about all samples' files.
            It is taken away before one of these is replaced or removed.
        masks_in_files: whether a sample's file holds its loss mask; else `close` writes the masks.
        requires: a module that `close` needs and that is not always installed.
    """

    name: str
    trainer: str
    states: tuple[FinalState, ...]
    layers: int | None
    inputs: bool
    file_name: Callable[[int], str]
    write: Callable[[str, TrainingSample, Context], None]
    dense: bool = False
    close: Callable[[Path, Iterable[Row]], None] | None = None
    closing_file: str | None = None
    masks_in_files: bool = True
    requires: str | None = None

    def trainer_ids(self, layer_ids: tuple[int, ...]) -> tuple[int, ...]:
        """`layer_ids`, outputs counted from 0, as this trainer counts."""
        return tuple(layer + self.inputs for layer in layer_ids)


def grouped(number: int, suffix: str) -> str:
    """A path that sorts by `number` as text, in folders of 2000 files."""
    first = number // _PER_FOLDER * _PER_FOLDER
    return f"rows_{first:09d}-{first + _PER_FOLDER:09d}/data_{number:09d}{suffix}"


_HOMES = {
    "specforge": "specforge",
    "speculators": "speculators",
    "speculators-v1": "speculators_v1",
    "modelopt": "modelopt",
    "safetensors": "plain",
}

NAMES = tuple(_HOMES)


def format_named(name: str) -> Format:
    """The format called `name`; `ConfigError` when there is none."""
    if name not in _HOMES:
        raise ConfigError(f"--format {name}: there is no such format; choose {', '.join(NAMES)}")
    found: Format = import_module(f"hs_capture.export.{_HOMES[name]}").FORMAT
    return found
