"""Frozen dataclasses that are JSON objects on disk, checked against their own annotations.

Fields may be added within one format version. So a reader passes over keys it does not know, and
a key that is missing takes the default of its field; anything else that does not fit the
annotations is a `FormatError` with the place of the field.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from hs_capture.errors import FormatError
from hs_capture.format.atomic import write_atomically

if TYPE_CHECKING:
    from typing_extensions import Self


class Record:
    """Base of the dataclasses that are stored as one JSON object."""

    __slots__ = ()

    def to_json(self) -> bytes:
        """The record as UTF-8 JSON on one line, without a line end."""
        return orjson.dumps(self)

    def to_object(self) -> dict[str, Any]:
        """The record as the plain dict that its JSON text stands for."""
        plain: dict[str, Any] = orjson.loads(self.to_json())
        return plain

    @classmethod
    def from_json(cls, data: bytes | memoryview, place: str) -> Self:
        """The record in `data`; `place` (a file, a line) starts the message of a `FormatError`."""
        return cls.from_object(parse_json(data, place), place)

    @classmethod
    def from_object(cls, value: object, place: str) -> Self:
        """The record in an already parsed JSON value, or a `FormatError`."""
        record: Self = _object(cls, value, place)
        return record

    def write(
        self, path: str | os.PathLike[str], mode: int = 0o600, *, durable: bool = False
    ) -> None:
        """Replace the file at `path` by this record; see `write_atomically`."""
        write_atomically(path, self.to_json() + b"\n", mode, durable=durable)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The record stored at `path`. A damaged file raises `FormatError`, a missing one
        `FileNotFoundError`."""
        return cls.from_json(Path(path).read_bytes(), os.fspath(path))


def parse_json(data: bytes | memoryview, place: str) -> Any:
    """The JSON value in `data`, or a `FormatError` that starts with `place`."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"{place}: not valid JSON: {error}") from error


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _object(cls: type[Any], value: object, place: str) -> Any:
    if not isinstance(value, dict):
        raise FormatError(f"{place}: expected a JSON object, found {_kind(value)}")
    hints = _hints(cls)  # type: ignore[arg-type]  # a class can be hashed
    arguments = {}
    for field in dataclasses.fields(cls):
        if field.name in value:
            at = f"{place}: field {field.name!r}"
            arguments[field.name] = _value(hints[field.name], value[field.name], at)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FormatError(f"{place}: field {field.name!r} is missing")
    return cls(**arguments)


def _value(hint: Any, value: object, place: str) -> Any:
    """`value` as the type `hint`; the hints that records use are all there is."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (hint,) = (choice for choice in inner if choice is not types.NoneType)
        return _value(hint, value, place)
    if origin is tuple and isinstance(value, list):
        kinds = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            raise FormatError(f"{place}: expected {len(kinds)} values, found {len(value)}")
        return tuple(_value(kind, item, place) for kind, item in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], item, f"{place}[{key!r}]") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast("type[Any]", hint), value, place)
    if hint is float and type(value) is int:
        return float(value)
    # An exact comparison, because a bool is an int to isinstance.
    if type(value) is hint:
        return value
    raise FormatError(f"{place}: expected {_name(hint)}, found {_kind(value)}")


def _name(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is dict:
        return "an object"
    return "an array" if origin is tuple else str(hint.__name__)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, list) else repr(value)[:80]
