"""The rows of an input file: JSON lines, Parquet, or a folder that `datasets` saved.

Rows are read one after the other, so an input may be larger than memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import xxhash

from hs_capture.errors import ConfigError, FormatError
from hs_capture.format.record import Record

CHATS = ("messages", "conversations")
"""The columns that hold chats."""

_PIECE = 1 << 20
_BATCH = 64
"""Rows of a table that are turned into Python objects at a time."""


@dataclass(frozen=True)
class Row:
    """Row `number` of an input, from 0: its columns, or else what is wrong with it."""

    number: int
    place: str
    columns: dict[str, Any] | None
    problem: str | None = None


class Source(ABC):
    """An input that can be read any number of times; `ConfigError` where its files are broken."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All rows, in order."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that hold the rows, in order."""

    def digest(self) -> str:
        """The xxh3_128 of all bytes of the input, as hexadecimal digits."""
        digest = xxhash.xxh3_128()
        for path in self.files():
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        return digest.hexdigest()

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""


class JsonLines(Source):
    """One JSON object a line; empty lines are no rows."""

    def rows(self) -> Iterator[Row]:
        numbers = count()
        with self.path.open("rb") as file:
            for line, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                number, place = next(numbers), f"{self.path.name} line {line}"
                try:
                    value = orjson.loads(text)
                except orjson.JSONDecodeError as error:
                    yield Row(number, place, None, f"not valid JSON: {error}")
                    continue
                if isinstance(value, dict):
                    yield Row(number, place, value)
                else:
                    yield Row(number, place, None, "not a JSON object")

    def files(self) -> list[Path]:
        return [self.path]

    def __len__(self) -> int:
        with self.path.open("rb") as file:
            return sum(1 for line in file if line.strip())


class Parquet(Source):
    """One Parquet file, or a folder of them in the order of their names."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._parquet = _pyarrow("parquet", path)

    def rows(self) -> Iterator[Row]:
        numbers = count()
        for path in self.files():
            with _whole(path, "Parquet"), self._parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_BATCH):
                    yield from _rows(batch, numbers)

    def files(self) -> list[Path]:
        return sorted(self.path.glob("*.parquet")) if self.path.is_dir() else [self.path]

    def __len__(self) -> int:
        return sum(map(self._count, self.files()))

    def _count(self, path: Path) -> int:
        with _whole(path, "Parquet"):
            return int(self._parquet.read_metadata(path).num_rows)


@dataclass(frozen=True)
class _Part(Record):
    filename: str


@dataclass(frozen=True)
class _State(Record):
    """Of state.json, what the rows are in."""

    _data_files: tuple[_Part, ...]


class SavedDataset(Source):
    """A folder written by `datasets.Dataset.save_to_disk`: Arrow streams, listed in state.json."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._ipc = _pyarrow("ipc", path)

    def rows(self) -> Iterator[Row]:
        numbers = count()
        for path in self.files():
            with _whole(path, "Arrow"):
                for batch in self._batches(path):
                    for start in range(0, batch.num_rows, _BATCH):
                        yield from _rows(batch.slice(start, _BATCH), numbers)

    def files(self) -> list[Path]:
        try:
            state = _State.read(self.path / "state.json")
        except FormatError as error:
            raise ConfigError(
                f"{error}; expected the folder of a data set as save_to_disk of datasets writes it"
            ) from error
        return [self.path / part.filename for part in state._data_files]

    def __len__(self) -> int:
        return sum(map(self._count, self.files()))

    def _count(self, path: Path) -> int:
        with _whole(path, "Arrow"):
            return sum(batch.num_rows for batch in self._batches(path))

    def _batches(self, path: Path) -> Iterator[Any]:
        with path.open("rb") as file, self._ipc.open_stream(file) as stream:
            yield from stream


def open_source(path: Path) -> Source:
    """The input at `path`; its kind is told by its name and by what is in it.

    Raises `ConfigError` when it is not there, of an unknown kind, or pyarrow is missing.
    """
    if not path.exists():
        raise ConfigError(f"{path}: there is no such input")
    if path.is_dir():
        if (path / "state.json").is_file():
            return SavedDataset(path)
        if (path / "dataset_dict.json").is_file():
            splits = sorted(inner.name for inner in path.iterdir() if inner.is_dir())
            raise ConfigError(f"{path} holds several splits: give one of {', '.join(splits)}")
        if any(path.glob("*.parquet")):
            return Parquet(path)
        raise ConfigError(f"{path}: found neither state.json of a saved data set nor *.parquet")
    if path.suffix == ".parquet":
        return Parquet(path)
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        return JsonLines(path)
    raise ConfigError(
        f"{path}: expected a name that ends in .jsonl or .parquet, or the folder of a data set"
    )


def _pyarrow(module: str, path: Path) -> Any:
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError:
        raise ConfigError(f"reading {path} needs pyarrow: pip install pyarrow") from None


@contextmanager
def _whole(path: Path, kind: str) -> Iterator[None]:
    """Name the file, and say what to do, when it turns out to be broken within a block."""
    try:
        yield
    # ValueError is Python's own, of a text or a time that it cannot make of what Arrow read.
    except (_pyarrow("lib", path).ArrowException, ValueError, OSError) as error:
        # Where the bytes make no sense, Arrow raises OSError too, without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        why = str(error).strip()
        raise ConfigError(
            f"{path} cannot be read as {kind}: {why}; write or copy it again"
        ) from error


def _rows(batch: Any, numbers: Iterator[int]) -> Iterator[Row]:
    for columns in batch.to_pylist():
        for name in CHATS:
            if isinstance(columns.get(name), list):
                columns[name] = [_message(message) for message in columns[name]]
        number = next(numbers)
        yield Row(number, f"row {number}", columns)


def _message(message: Any) -> Any:
    """A message without what Arrow put into it: it gives each struct the fields of all others.

    Those of the message itself stay, null, for its reader knows what each means.
    """
    if not isinstance(message, dict):
        return message
    return {name: _given(value) for name, value in message.items()}


def _given(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _given(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_given(item) for item in value]
    return value
