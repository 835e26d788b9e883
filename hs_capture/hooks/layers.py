"""Which layers to capture: what was asked for, settled against the model that is served."""

from __future__ import annotations

from collections.abc import Callable

from hs_capture.errors import ConfigError
from hs_capture.layer_ids import EMBEDDING, eagle3_default, internal_id
from hs_capture.settings import LAYERS, LayerChoice


def settle_layers(
    choice: LayerChoice,
    num_layers: int,
    first_local: int,
    eagle3_rule: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the layer ids to capture, ascending, for a model of `num_layers` decoder layers.

    `first_local` is the first layer that this pipeline stage holds; `eagle3_rule` turns the ids of
    a draft model's config into SGLang's internal ids.

    Raises:
        ConfigError: an id is out of range, twice there, or not on this pipeline stage.
    """
    asked = _asked(choice, num_layers, eagle3_rule)
    last = num_layers - 1
    said = f"{LAYERS}{_origin(choice, asked)}"
    for layer in asked:
        if layer == last:
            raise ConfigError(
                f"{said}: layer {layer} is the last of this model's {num_layers} layers. Its "
                "output is the final hidden state before the norm, which SGLANG_HS_FINAL=pre_norm "
                "stores; leave it out here"
            )
        if not EMBEDDING <= layer < last:
            raise ConfigError(
                f"{said}: layer {layer} does not exist: this model has {num_layers} layers, so "
                f"ids go from -1 (the embedding) to {last - 1}"
            )
        if internal_id(layer) < first_local:
            raise ConfigError(
                f"{said}: layer {layer} is computed by an earlier pipeline stage; the last stage "
                f"begins with layer {first_local} and can capture from {first_local - 1} on. "
                "Choose such layers or serve with --pp-size 1"
            )
    if len(set(asked)) < len(asked):
        raise ConfigError(f"{said}: a layer is named twice; name each once")
    return tuple(sorted(asked))


def _origin(choice: LayerChoice, asked: tuple[int, ...]) -> str:
    """Return the setting as it was written and, for a draft model's ids, what they stand for."""
    if choice.kind == "eagle3":
        return f"=eagle3:{_listed(choice.ids)} (here the outputs of layers {_listed(asked)})"
    return f"={_listed(choice.ids)}" if choice.kind == "ids" else "=auto"


def _asked(
    choice: LayerChoice,
    num_layers: int,
    eagle3_rule: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> tuple[int, ...]:
    if choice.kind == "eagle3":
        return tuple(internal - 1 for internal in eagle3_rule(choice.ids))
    if choice.kind == "ids":
        return choice.ids
    # EAGLE-3's low, middle and high layer (SpecForge, ModelOpt; the same as SGLang's default).
    layers = eagle3_default(num_layers)
    if not 1 < layers[1] < layers[2]:
        raise ConfigError(
            f"{LAYERS}=auto needs a model of 7 or more layers, this one has {num_layers}; "
            "name the layers, as in SGLANG_HS_LAYERS=0,1"
        )
    return layers


def _listed(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers))
