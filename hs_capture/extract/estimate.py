"""What a run will need: bytes, memory and time, from the input and the model's config alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hs_capture.errors import ConfigError
from hs_capture.extract.chat import ChatTokenizer
from hs_capture.extract.samples import RowError, prompt_of
from hs_capture.extract.source import Source
from hs_capture.format.codec import dtype_of
from hs_capture.format.record import parse_json

_RATIO = {"bfloat16": 1.45, "float32": 1.18}
"""Raw bytes to stored bytes of hidden states. 1.45 was measured in bfloat16; the exponents of
float32 shrink as much, and are a quarter of it instead of a half. Others are taken as they are."""

_TOKEN_ID_BYTES = 8


@dataclass(frozen=True)
class Amount:
    """The samples of an input, after tokenization; `bad` rows are no samples."""

    samples: int
    tokens: int
    longest: int
    bad: int


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides the size of its states."""

    num_layers: int
    hidden_size: int
    dtype: str


@dataclass(frozen=True)
class Estimate:
    """Sizes in bytes, times in seconds; a time is None where its speed was not given."""

    raw_bytes: int
    stored_bytes: int
    in_flight_bytes: int
    """What is in the dump directory at a time when captures are moved as fast as they come."""
    tmpfs_bytes: int
    """The room that the dump directory needs for the server never to wait."""
    seconds: float | None


def measure(
    source: Source,
    tokenizer: ChatTokenizer | None,
    shard: tuple[int, int],
    tell: Callable[[int, str], None] | None = None,
) -> Amount:
    """Read the whole input; `shard` is (i, n) for each n-th row from row i on.

    `tell` is told of each bad row as it comes: which of the bad ones it is, from 1, and where it
    is and why it is bad.
    """
    samples = tokens = longest = bad = 0
    turn, of = shard
    for row in source.rows():
        if row.number % of != turn:
            continue
        try:
            length = len(prompt_of(row, tokenizer).input_ids)
        except RowError as error:
            bad += 1
            if tell is not None:
                tell(bad, f"{row.place}: {error}")
            continue
        samples, tokens, longest = samples + 1, tokens + length, max(longest, length)
    return Amount(samples, tokens, longest, bad)


def read_shape(model: Path) -> ModelShape:
    """The shape from the config.json in the folder `model`; `ConfigError` when it does not say."""
    path = model / "config.json" if model.is_dir() else model
    try:
        config = parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; give the folder of the model") from None
    # Models that see or hear keep what is said of the language model apart.
    text = {**config, **config.get("text_config", {})}
    try:
        layers, hidden = int(text["num_hidden_layers"]), int(text["hidden_size"])
    except KeyError as error:
        raise ConfigError(f"{path}: {error} is missing") from None
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    return ModelShape(layers, hidden, dtype_of(dtype.removeprefix("torch.")).name)


def estimate(
    amount: Amount,
    shape: ModelShape,
    states: int,
    concurrency: int,
    tokens_per_second: float | None = None,
    drain_bytes_per_second: float | None = None,
) -> Estimate:
    """What it takes to capture `amount`, with `states` states a token.

    Without a speed of the server the dump directory is taken to be emptied in time; without one of
    the drain, when that of the server is given, not to be emptied at all.
    """
    row = states * shape.hidden_size * dtype_of(shape.dtype).itemsize
    stored_row = row / _RATIO.get(shape.dtype, 1.0) + _TOKEN_ID_BYTES
    stored = int(amount.tokens * stored_row)
    # One set is being written while the one before it is being moved.
    in_flight = min(stored, int(2 * concurrency * amount.longest * stored_row))
    seconds = backlog = None
    if tokens_per_second is not None:
        seconds = amount.tokens / tokens_per_second
        drained = (drain_bytes_per_second or 0.0) * seconds
        backlog = max(0, int(stored - drained))
        if drain_bytes_per_second:
            # The last captures are moved after the server is done.
            seconds = max(seconds, stored / drain_bytes_per_second)
    tmpfs = min(stored, in_flight + (backlog or 0))
    raw = amount.tokens * (row + _TOKEN_ID_BYTES)
    return Estimate(raw, stored, in_flight, tmpfs, seconds)
