"""Tells models apart by their configs."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

OF_THE_READER = "transformers_version"
"""What transformers puts into every config that it reads: its own version."""


def config_digest(config: Any) -> str:
    """Return the SHA-256 of a transformers config as sorted JSON, as 64 hexadecimal digits.

    It is the same wherever the model lies, and whoever reads it: names that begin with an
    underscore (``_name_or_path``) and the version of transformers are left out at every level.
    """
    said = orjson.dumps(
        _of_the_model(config.to_dict()),
        default=str,
        option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS,
    )
    return hashlib.sha256(said).hexdigest()


def _of_the_model(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _of_the_model(inner)
            for name, inner in value.items()
            if not str(name).startswith("_") and name != OF_THE_READER
        }
    if isinstance(value, list | tuple):
        return [_of_the_model(inner) for inner in value]
    return value
