"""A draft model's config against the store it was trained on, for one release of SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hs_capture.drafter.config import LAYER_IDS, DraftConfig
from hs_capture.errors import ConfigError
from hs_capture.hooks.families import FAMILIES
from hs_capture.layer_ids import (
    CAPTURES_EAGLE3,
    CAPTURES_EMBEDDING,
    EMBEDDING,
    SHIFTS_BY_FIRST_ID,
    release_of,
    resolve_eagle3,
    spell_eagle3,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hs_capture.format.run import RunInfo


OTHER_RULES = frozenset(family.causal_lm for family in FAMILIES if not family.with_kin)
"""Models whose drafters' layer ids SGLang reads by another rule than those of DeepSeek-V2's."""


TARGETS = frozenset(family.causal_lm for family in FAMILIES)
"""Models that drafters are made for; none of them is an EAGLE-3 drafter itself."""


@dataclass(frozen=True)
class Finding:
    """One thing that was compared. `matches` is None where the config does not say it."""

    name: str
    matches: bool | None
    text: str


def the_run(runs: Sequence[RunInfo]) -> RunInfo:
    """The run that stands for the store.

    Raises `ConfigError` when there is none, or when they captured different things.
    """
    if not runs:
        raise ConfigError("the store has no run.json, which says what its model is")
    for run in runs[1:]:
        if (run.layer_ids, run.config_digest) != (runs[0].layer_ids, runs[0].config_digest):
            raise ConfigError(
                f"runs {runs[0].run_id} and {run.run_id} captured different layers or models; "
                "give one of them as --store"
            )
    return runs[-1]


def only_layers(run: RunInfo, layers: tuple[int, ...]) -> RunInfo:
    """The run as if it had captured `layers` alone; `ConfigError` for one that it has not."""
    absent = [layer for layer in layers if layer not in run.layer_ids]
    if absent:
        captured = ",".join(map(str, run.layer_ids))
        raise ConfigError(f"--layers: layer {absent[0]} was not captured; captured are {captured}")
    return replace(run, layer_ids=tuple(sorted(layers)))


def check(run: RunInfo, draft: DraftConfig, version: str) -> list[Finding]:
    """Compare what SGLang `version` would feed the drafter with what `run` captured.

    Raises `ConfigError` for a release that feeds EAGLE-3 nothing of such a model, for a model that
    SGLang has another rule for, and for the config of a target model in place of a drafter's.
    """
    if run.model_class in OTHER_RULES:
        raise ConfigError(
            f"the store is of a {run.model_class}: how SGLang reads layer ids is known here for "
            "the DeepSeek-V2 family alone; look at set_eagle3_layers_to_capture of that class"
        )
    if draft.architecture in TARGETS | {run.model_class, run.architecture}:
        raise ConfigError(
            f"--draft-config: {draft.architecture} is a target model, and no EAGLE-3 drafter; give "
            'the config of the draft model, with "architectures" such as LlamaForCausalLMEagle3'
        )
    release = release_of(version)
    if release < CAPTURES_EAGLE3:
        raise ConfigError(
            f"SGLang {version}: releases before 0.5.4.post2 do not run EAGLE-3 with "
            f"{run.architecture}; give --sglang-version of the server that will run the drafter"
        )
    return [
        _convention(draft, version, release),
        _layers(run, draft, version, release),
        *_shapes(run, draft),
    ]


def _convention(draft: DraftConfig, version: str, release: tuple[int, ...]) -> Finding:
    if draft.layer_ids is None:
        said = f"no {LAYER_IDS}: SGLang takes its default, EAGLE-3's low, middle and high layer"
    elif release < SHIFTS_BY_FIRST_ID:
        said = f"SGLang {version} takes every id for the output of that layer"
    elif draft.layer_ids[0] == 1:
        said = f"the first id is 1, so SGLang {version} takes the ids for outputs of layers"
    else:
        said = (
            f"the first id is {draft.layer_ids[0]} and not 1, so SGLang {version} takes the ids "
            "for inputs of layers: the output of the layer below each"
        )
    return Finding("convention", None, said)


def _layers(run: RunInfo, draft: DraftConfig, version: str, release: tuple[int, ...]) -> Finding:
    trained = tuple(sorted(run.layer_ids))
    fed = resolve_eagle3(draft.layer_ids, release, run.num_layers)
    held = f"trained on {_outputs(trained)}"
    if not draft.uses_aux:
        return Finding("layers", False, f"{held}; use_aux_hidden_state is off, none would be fed")
    absent = [layer for layer in fed if not _exists(layer, run.num_layers, release)]
    if fed == trained and not absent:
        return Finding("layers", True, f"{held}, and SGLang {version} would feed the same")
    would = f"{held}; SGLang {version} would feed {_outputs(fed)}"
    if absent:
        would += f", of which it cannot capture {_outputs(absent)} and fails"
    return Finding("layers", False, f"{would}; {_advice(trained, release, run.num_layers)}")


def _advice(trained: tuple[int, ...], release: tuple[int, ...], num_layers: int) -> str:
    ids = spell_eagle3(trained, release, num_layers)
    if not all(_exists(layer, num_layers, release) for layer in trained):
        return "it cannot feed what the drafter was trained on: upgrade SGLang, or train anew"
    if ids is None:
        return "no ids make it feed what the drafter was trained on: train anew on other layers"
    return f'write "{LAYER_IDS}": {list(ids)}'


def _exists(layer: int, num_layers: int, release: tuple[int, ...]) -> bool:
    """Whether SGLang can capture the output of `layer`: it is the input of one of its layers."""
    lowest = EMBEDDING if release >= CAPTURES_EMBEDDING else EMBEDDING + 1
    return lowest <= layer <= num_layers - 2


def _shapes(run: RunInfo, draft: DraftConfig) -> Iterator[Finding]:
    if draft.num_aux is not None:
        yield _same("count", "states joined", draft.num_aux, len(run.layer_ids))
    yield _same("hidden size", "width of a state", draft.target_hidden_size, run.hidden_size)
    yield _same("dtype", "element type", draft.dtype, run.dtype)
    yield _same("vocabulary", "token ids", draft.vocab_size, run.vocab_size)
    if draft.draft_vocab_size is not None and draft.draft_vocab_size > run.vocab_size:
        said = f"draft_vocab_size {draft.draft_vocab_size} is above the model's {run.vocab_size}"
        yield Finding("vocabulary", False, said)


def _same(name: str, what: str, said: object, captured: object) -> Finding:
    if said is None:
        return Finding(name, None, f"{what}: the config does not say; captured {captured}")
    text = f"{what}: {said} in the config, {captured} captured"
    return Finding(name, said == captured, text)


def _outputs(layers: Sequence[int]) -> str:
    named = ["the embedding" if layer == EMBEDDING else f"layer {layer}" for layer in layers]
    if all(layer >= 0 for layer in layers):
        return f"the output of layers {', '.join(map(str, layers))}"
    return f"the outputs of {', '.join(named)}"
