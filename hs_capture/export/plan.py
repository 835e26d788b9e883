"""What an export will do: which captures, in which order, in which form; or why it cannot."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hs_capture.errors import ConfigError
from hs_capture.export.formats import Context, Format
from hs_capture.export.jobs import Jobs
from hs_capture.export.sidecar import Sidecar
from hs_capture.selection import Origin, select

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hs_capture.captured_request import Capture, FinalState
    from hs_capture.store import CaptureStore


@dataclass(frozen=True)
class Wish:
    """What the user may choose; None leaves the choice to the format and the store."""

    layers: tuple[int, ...] | None = None
    state: FinalState | None = None
    rids: str | None = None
    weights_version: int | None = None


@dataclass(frozen=True)
class Plan:
    """All of it. `left_out` counts the captures that are not exported, by reason."""

    store_path: Path
    format: Format
    context: Context
    jobs: Jobs
    left_out: dict[str, int]
    sidecar: Sidecar


def make_plan(store: CaptureStore, format_: Format, wish: Wish) -> Plan:
    """Plan the export of all complete captures of `store`.

    With a samples.jsonl the samples in it are exported, in their order; else every rid, in the
    order of the store. Of several captures of a rid the newest complete one is taken.

    Raises:
        ConfigError: the format cannot express what the store holds, nothing is to be exported, or
            a package is missing.
    """
    if format_.requires and importlib.util.find_spec(format_.requires) is None:
        raise ConfigError(
            f"--format {format_.name} needs the package {format_.requires}: "
            f"pip install {format_.requires}"
        )
    selection = select(
        store, wish.rids, wish.weights_version, layers_are_chosen=wish.layers is not None
    )
    if not selection.positions:
        said = ", ".join(f"{count} {why}" for why, count in selection.left_out.items())
        raise ConfigError(f"{store.path}: no capture to export ({said or 'the store is empty'})")
    jobs = Jobs(store, selection)
    first = jobs[0].capture
    layers = _layers(format_, first, wish)
    state = _state(format_, store.path, list(_offers(selection.origins, first)), wish)
    sidecar = Sidecar.of(format_, first, layers, state, masks=selection.samples is not None)
    context = Context(layers, state, sidecar.words(), first.hidden_size, first.metadata["dtype"])
    return Plan(store.path, format_, context, jobs, selection.left_out, sidecar)


def _layers(format_: Format, first: Capture, wish: Wish) -> tuple[int, ...]:
    held = tuple(first.layer_ids)
    layers = held if wish.layers is None else wish.layers
    absent = [layer for layer in layers if layer not in held]
    if absent:
        raise ConfigError(
            f"--layers: layer {absent[0]} was not captured; captured are {_ids(held)}"
        )
    if list(layers) != sorted(set(layers)):
        raise ConfigError(f"--layers {_ids(layers)}: name each layer once, in ascending order")
    if format_.layers is not None and len(layers) != format_.layers:
        hint = (
            f"choose {format_.layers} of them with --layers"
            if len(held) > format_.layers
            else f"capture {format_.layers} layers"
        )
        raise ConfigError(
            f"{format_.trainer} takes exactly {format_.layers} layers, here are {len(layers)} "
            f"({_ids(layers)}); {hint}"
        )
    if not layers:
        raise ConfigError(f"{format_.trainer} needs the outputs of layers, the store has none")
    return layers


def _state(format_: Format, store_path: Path, offers: list[set[str]], wish: Wish) -> FinalState:
    if wish.state is not None and wish.state not in format_.states:
        raise ConfigError(
            f"--final {wish.state}: {format_.trainer} expects {' or '.join(format_.states)}"
        )
    wanted = format_.states if wish.state is None else (wish.state,)
    for state in wanted:
        if all(state in offered for offered in offers):
            return state
    has = sorted({word for offered in offers for word in offered})
    why = "capture with SGLANG_HS_FINAL=pre_norm or both"
    if has == ["post_norm"]:
        why = f"a norm cannot be taken back; {why}"
    elif has == ["pre_norm"]:
        why = "post_norm is derived with the norm that run.json holds, and there is none"
    raise ConfigError(
        f"{format_.trainer} expects the {' or '.join(wanted)} final state, and "
        f"{store_path} has {' and '.join(has) or 'none'}: {why}"
    )


def _offers(origins: Sequence[Origin], first: Capture) -> Iterator[set[str]]:
    """The final states that can be had, of each run and of captures without one."""
    for run, version in origins:
        derivable = run.norm_of(version) is not None and "pre_norm" in run.final
        yield {*run.final, *({"post_norm"} if derivable else ())}
    if not origins:
        yield set(first.metadata["final"])


def _ids(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))
