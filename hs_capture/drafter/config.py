"""What a draft model's config.json says about the states it is fed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hs_capture.errors import ConfigError, FormatError
from hs_capture.format.record import parse_json

if TYPE_CHECKING:
    from typing_extensions import Self

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class DraftConfig:
    """An EAGLE-3 drafter's config, as SGLang reads it. None is what the file does not say.

    Attributes:
        architecture: the first name in `architectures`.
        layer_ids: as they are written, in the file's order; SGLang falls back to its default
            without them.
        uses_aux: whether the drafter is fed the states of layers at all.
        target_hidden_size: the width of one fed state.
        num_aux: how many fed states are joined.
    """

    architecture: str | None
    layer_ids: tuple[int, ...] | None
    uses_aux: bool
    target_hidden_size: int | None
    num_aux: int | None
    dtype: str | None
    vocab_size: int | None
    draft_vocab_size: int | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """The config in the file `path`, or in the model folder `path`.

        Raises `ConfigError` when there is none, or when its layer ids are no list of numbers.
        """
        file = path / "config.json" if path.is_dir() else path
        try:
            found = parse_json(file.read_bytes(), str(file))
        except FileNotFoundError:
            raise ConfigError(
                f"{file}: there is no such file; give a draft model's config"
            ) from None
        except FormatError as error:
            raise ConfigError(str(error)) from error
        if not isinstance(found, dict):
            raise ConfigError(f"{file}: expected a JSON object")
        eagle = found.get("eagle_config")
        eagle = eagle if isinstance(eagle, dict) else {}
        return cls(
            architecture=_architecture(found.get("architectures")),
            layer_ids=_layer_ids(eagle.get(LAYER_IDS), file),
            uses_aux=bool(eagle.get("use_aux_hidden_state", True)),
            target_hidden_size=_number(found, "target_hidden_size", "hidden_size"),
            num_aux=_number(found, "num_aux_hidden_states"),
            dtype=found.get("dtype") or found.get("torch_dtype"),
            vocab_size=_number(found, "vocab_size"),
            draft_vocab_size=_number(found, "draft_vocab_size"),
        )


def _architecture(value: Any) -> str | None:
    first = value[0] if isinstance(value, list) and value else None
    return first if isinstance(first, str) else None


def _layer_ids(value: Any, file: Path) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or any(type(item) is not int for item in value):
        raise ConfigError(f"{file}: {LAYER_IDS} is {value!r}, expected a list of layer ids")
    return tuple(value)


def _number(found: dict[str, Any], *names: str) -> int | None:
    values = (found.get(name) for name in names)
    return next((value for value in values if type(value) is int), None)
