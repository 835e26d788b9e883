"""The head of a checkpoint: its final norm and its lm_head, and no other tensor."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hs_capture.errors import ConfigError, FormatError
from hs_capture.format.codec import dtype_of
from hs_capture.format.record import parse_json
from hs_capture.tensors import to_tensor

if TYPE_CHECKING:
    import torch

_INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LONGEST_HEADER = 100_000_000
"""Bytes; the limit of safetensors itself."""

# Names of the norm, the head, and the embeddings, in the checkpoints of language models and of
# models that also see. Kimi-K2.5 is the second.
_LAYOUTS = (
    ("model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"),
    (
        "language_model.model.norm.weight",
        "language_model.lm_head.weight",
        "language_model.model.embed_tokens.weight",
    ),
    (
        "model.language_model.norm.weight",
        "lm_head.weight",
        "model.language_model.embed_tokens.weight",
    ),
)
_PLACEHOLDERS = (
    "media_placeholder_token_id",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "audio_token_id",
)
# Models with one of these do more to their logits than norm and head.
_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


@dataclass(frozen=True)
class Checkpoint:
    """What makes logits of final states.

    `norm` is [H] and `head` is [V, H], in the dtype of the file; the head is mapped, not read.
    `placeholders` are the token ids that stand for images and the like.
    """

    path: Path
    norm: torch.Tensor
    head: torch.Tensor
    eps: float
    num_layers: int
    placeholders: frozenset[int]

    @property
    def hidden_size(self) -> int:
        """H, the width of a final state."""
        return int(self.head.shape[1])

    @property
    def vocab_size(self) -> int:
        """V, the number of token ids."""
        return int(self.head.shape[0])


def open_checkpoint(path: Path) -> Checkpoint:
    """The head of the checkpoint in the folder `path`, of config.json and safetensors files.

    Raises `ConfigError` for a folder that has no such head, with what is missing or not supported.
    """
    whole = _config(path)
    # Models that also see keep the language model's part apart.
    inner = whole.get("text_config")
    config = {**whole, **inner} if isinstance(inner, dict) else whole
    for scale in _SCALES:
        if config.get(scale) not in (None, 1, 1.0):
            raise ConfigError(
                f"{path}: config.json has {scale}: only heads that are a norm and a matrix are "
                "supported"
            )
    files = _files(path)
    found = [layout for layout in _LAYOUTS if layout[0] in files]
    if not found:
        sought = ", ".join(layout[0] for layout in _LAYOUTS)
        raise ConfigError(f"{path}: no final norm in its safetensors files; sought {sought}")
    norm_name, head_name, embeddings = found[0]
    if config.get("tie_word_embeddings") or head_name not in files:
        if not config.get("tie_word_embeddings"):
            raise ConfigError(
                f"{path}: no {head_name} in its safetensors files, and config.json does not say "
                "that the embeddings are tied"
            )
        head_name = embeddings
    if head_name not in files:
        raise ConfigError(f"{path}: no {head_name} in its safetensors files")
    norm, head = _mapped(files[norm_name], norm_name), _mapped(files[head_name], head_name)
    if norm.ndim != 1 or head.ndim != 2 or norm.shape[0] != head.shape[1]:
        raise ConfigError(
            f"{path}: {norm_name} is {list(norm.shape)} and {head_name} is {list(head.shape)}: "
            "expected [hidden size] and [vocabulary, hidden size]"
        )
    # Some heads have more rows than tokens; the engine leaves those out.
    vocabulary = min(int(_number(path, config, "vocab_size")), head.shape[0])
    return Checkpoint(
        path=path,
        norm=norm,
        head=head[:vocabulary],
        eps=_number(path, config, "rms_norm_eps"),
        num_layers=int(_number(path, config, "num_hidden_layers")),
        placeholders=frozenset(int(config[n]) for n in _PLACEHOLDERS if config.get(n) is not None),
    )


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        value = parse_json(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}): expected the folder of a checkpoint with "
            "config.json and safetensors files"
        ) from error
    except FormatError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: expected a JSON object")
    return value


def _number(path: Path, config: dict[str, Any], name: str) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{path}: config.json has {name} {value!r}, expected a number")
    return value


def _files(path: Path) -> dict[str, Path]:
    """The safetensors file of each tensor."""
    index = path / _INDEX
    if index.is_file():
        try:
            listed = parse_json(index.read_bytes(), str(index))
        except FormatError as error:
            raise ConfigError(str(error)) from error
        places = listed.get("weight_map") if isinstance(listed, dict) else None
        if not isinstance(places, dict):
            raise ConfigError(f"{index}: no weight_map in it")
        return {name: path / str(file) for name, file in places.items()}
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise ConfigError(f"{path}: no *.safetensors files, and no {_INDEX}")
    return {name: file for file in found for name in _header(file)[0]}


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The tensors that a safetensors file describes, and where their bytes begin."""
    try:
        with file.open("rb") as reading:
            (length,) = struct.unpack("<Q", reading.read(8))
            if length > _LONGEST_HEADER:
                raise ConfigError(f"{file}: not a safetensors file: its header is {length} bytes")
            header = parse_json(reading.read(length), str(file))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (FormatError, struct.error) as error:
        raise ConfigError(f"{file}: not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{file}: not a safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _mapped(file: Path, name: str) -> torch.Tensor:
    header, begin = _header(file)
    match header.get(name):
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise ConfigError(f"{file}: it should hold {name}, and does not describe it")
    if code not in _DTYPES:
        raise ConfigError(
            f"{file}: {name} is {code}, which is not supported; expected {', '.join(_DTYPES)}"
        )
    dtype = dtype_of(_DTYPES[code])
    size = math.prod(shape) * dtype.itemsize
    if stop - start != size or not 0 < begin + stop <= file.stat().st_size:
        raise ConfigError(f"{file}: {name} has no whole {size} bytes: was the file cut short?")
    # Copy on write, since torch wants memory that could be written.
    array = np.memmap(file, dtype.carrier, "c", begin + start, tuple(shape))
    return to_tensor(np.asarray(array), dtype.name)
