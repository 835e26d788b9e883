"""What is compared with where two experts of a layer score the same: see harness.reference.Tie."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import reference as reference_module
from harness.prompts import prompt
from harness.reference import Reference, Tie


def test_the_other_expert_changes_its_row_and_what_comes_of_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, tie = prompt(1, 9), Tie(3, 5)
    reference = Reference(model)
    assert reference.states(tokens).ties == ()
    # No margin is so large, so each choice of each of the seven layers with experts is a tie.
    monkeypatch.setattr(reference_module, "TIE", 2.0)
    plain = Reference(model).states(tokens)
    assert plain.ties == tuple(Tie(layer, row) for layer in range(1, 8) for row in range(9))
    other = reference.choosing_otherwise(tie).states(tokens)
    changed = {
        layer: [
            r for r in range(9) if float((states[r] - other.layers[layer][r]).abs().max()) > 1e-4
        ]
        for layer, states in plain.layers.items()
    }
    later = [5, 6, 7, 8]
    assert changed == {-1: [], 0: [], 1: [], 2: [], 3: [5], 4: later, 5: later, 6: later, 7: later}
