"""What a store is extracted from, so that a run can only be gone on with, never mixed up."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from hs_capture.errors import ConfigError, FormatError
from hs_capture.format.catalog import SUFFIX
from hs_capture.format.record import Record
from hs_capture.format.run import NormWeight, RunInfo
from hs_capture.samples import SAMPLES_FILE
from hs_capture.selection import Origin

EXTRACT_FILE = "extract.json"


@dataclass(frozen=True)
class Input(Record):
    """The samples: `rows` of the whole input, of which `shard` takes each that is its turn.

    `digest` is of the input's bytes, `tokenizer` of the tokenizer's files, None where there is
    none. `shard` is (i, n): the rows with number i modulo n.
    """

    digest: str
    rows: int
    tokenizer: str | None
    shard: tuple[int, int]

    @property
    def samples(self) -> int:
        """How many rows the shard has."""
        turn, of = self.shard
        return len(range(turn, self.rows, of))


@dataclass(frozen=True)
class Target(Record):
    """The model, and what of it is captured."""

    model_class: str
    architecture: str
    config_digest: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    layer_ids: tuple[int, ...]
    final: tuple[str, ...]

    @classmethod
    def of(cls, run: RunInfo) -> Target:
        """What `run` captures."""
        return cls(**{name: getattr(run, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Summary(Record):
    """extract.json: what the store is made of, and how far it is.

    `state` is "running", "finished" (every sample was tried), "interrupted" or "stopped" (by an
    error). `key` is part of every rid. `samples` are those of the shard; `captured` of them are in
    the store, `failed` could not be captured in the last session. `tokens`, `raw_bytes` and
    `stored_bytes` are those of the captured samples, `seconds` the time of all sessions.
    """

    key: str
    state: str
    input: Input
    target: Target | None
    samples: int
    captured: int
    failed: int
    tokens: int
    raw_bytes: int
    stored_bytes: int
    sessions: int
    seconds: float

    @classmethod
    def new(cls, source: Input) -> Summary:
        """The summary of a run that begins."""
        key = f"x{secrets.token_hex(4)}"
        return cls(key, "running", source, None, source.samples, 0, 0, 0, 0, 0, 0, 0.0)


def open_summary(output: Path, source: Input) -> Summary:
    """The summary of the run in `output` to go on with, or a new one.

    A store that holds no sample yet is begun anew, from whatever input and model; it keeps the key
    and counts its sessions on, so that what the server may still publish is known by its rid.
    Raises `ConfigError` when another store was begun from another input, and says what differs, and
    when the store has samples, and extract.json does not say of which run and input.
    """
    path = output / EXTRACT_FILE
    try:
        found = Summary.read(path)
    except FileNotFoundError:
        if _holds_nothing(output):
            return Summary.new(source)
        raise ConfigError(
            f"{output} holds captures or {SAMPLES_FILE}, but no {EXTRACT_FILE}, which says of what "
            f"input they are: put {path} back, or give another output directory"
        ) from None
    except FormatError as error:
        raise ConfigError(
            f"{error}; put {path} back as it was, or give another output directory"
        ) from error
    if _holds_nothing(output):
        return replace(found, input=source, samples=source.samples, target=None)
    names = {
        "digest": "the input's bytes",
        "rows": "the input's number of rows",
        "tokenizer": "the tokenizer",
        "shard": "the shard",
    }
    _refuse(output, "input", names, found.input, source)
    return found


def _holds_nothing(output: Path) -> bool:
    """Whether the store has no capture, and never had the line of one."""
    samples = output / SAMPLES_FILE
    if samples.exists() and samples.stat().st_size:
        return False
    return next(output.rglob(f"*{SUFFIX}"), None) is None


def refuse_other_target(output: Path, there: Target, served: Target, server: str) -> None:
    """Raise `ConfigError` when a server captures something else than the store holds."""
    names = {name: name.replace("_", " ") for name in Target.__dataclass_fields__}
    _refuse(output, f"model or choice of layers ({server})", names, there, served)


def refuse_other_weights(output: Path, there: Origin, served: Origin, server: str) -> None:
    """Raise `ConfigError` when a server computes with other weights than the store's captures.

    Of the weights a run holds the final norm, in which nearly all that were trained apart differ.
    """
    (before, its_version), (now, version) = there, served
    difference = _difference(before.norm_of(its_version), now.norm_of(version))
    if difference is not None:
        raise ConfigError(
            f"{output} belongs to other weights of the same model ({server}); of the final norm of "
            f"run {before.run_id} in the store and of run {now.run_id} now {difference}; "
            "give another output directory"
        )


def _difference(one: NormWeight | None, other: NormWeight | None) -> str | None:
    if one == other:
        return None
    if one is None or other is None:
        return "only one is known"
    if (one.dtype, one.eps) != (other.dtype, other.eps):
        return f"dtype and eps are {one.dtype}, {one.eps:g} and {other.dtype}, {other.eps:g}"
    differing = np.count_nonzero(one.weight() != other.weight())
    return f"{differing:,} of {len(one.weight()):,} values differ"


def _refuse(output: Path, what: str, names: dict[str, str], there: Record, now: Record) -> None:
    before, after = asdict(there), asdict(now)  # type: ignore[call-overload]
    differences = [
        f"{names[name]}: {_short(before[name])} in the store, {_short(after[name])} now"
        for name in before
        if before[name] != after[name]
    ]
    if differences:
        raise ConfigError(
            f"{output} belongs to another {what}; {'; '.join(differences)}; "
            "give another output directory"
        )


def _short(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 24 else f"{text[:16]}..."
