"""Layer ids and their conventions. Knows what SGLang does with ids, not SGLang itself.

Ours: id L is the output of decoder layer L, counted from 0; -1 is the output of the embedding.
SGLang's ``layers_to_capture``: id i is the input of layer i, so i = L + 1.
"""

from __future__ import annotations

import re

EMBEDDING = -1

CAPTURES_EAGLE3 = (0, 5, 4, 2)
"""The first release that hands EAGLE-3 the states of a DeepSeek-like model: 0.5.4.post2."""
SHIFTS_BY_FIRST_ID = (0, 5, 13)
"""The first release with the rule of SGLang pull request 25454."""
CAPTURES_EMBEDDING = (0, 5, 14)
"""The first release that can capture the output of the embedding."""


def internal_id(layer: int) -> int:
    """Return SGLang's id for the output of decoder layer `layer`."""
    return layer + 1


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a SGLang version: three, and a fourth where it has a ``.post``."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.post(\d+))?", version)
    return tuple(int(number) for number in numbers.groups() if number) if numbers else ()


def eagle3_default(num_layers: int) -> tuple[int, ...]:
    """Return the layers of EAGLE-3 in a model of `num_layers`, where nobody names any."""
    return (1, num_layers // 2 - 1, num_layers - 4)


def resolve_eagle3(
    ids: tuple[int, ...] | None, release: tuple[int, ...], num_layers: int
) -> tuple[int, ...]:
    """Return the layers that SGLang feeds a drafter whose config has `ids`, ascending, in our ids.

    This is the rule for DeepSeek-V2 and its kin, which Kimi-K2 and K2.5 share: up to 0.5.12 an id
    names the output of a layer; from 0.5.13 on only if the first of them is 1, else the input.
    None stands for a config that names no ids. An id that names nothing in the model comes out as
    one below -1 or above `num_layers` - 2.
    """
    if ids is None:
        return eagle3_default(num_layers)
    names_outputs = release < SHIFTS_BY_FIRST_ID or ids[:1] == (1,)
    return tuple(sorted({layer if names_outputs else layer - 1 for layer in ids}))


def spell_eagle3(
    layers: tuple[int, ...], release: tuple[int, ...], num_layers: int
) -> tuple[int, ...] | None:
    """Return ids for a drafter's config with which SGLang feeds `layers`, None if none do."""
    inputs = tuple(map(internal_id, layers))
    spellings = (layers, inputs) if release < SHIFTS_BY_FIRST_ID else (inputs, layers)
    # SGLang takes the ids in any order, and the rule looks at the first.
    for ids in (*spellings, inputs[::-1]):
        if resolve_eagle3(ids, release, num_layers) == layers:
            return ids
    return None
