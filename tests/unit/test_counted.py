"""A number and its noun agree."""

from __future__ import annotations

import pytest

from hs_capture.counted import count_text


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ["run"], "0 runs"),
        (1, ["run"], "1 run"),
        (2000, ["run"], "2,000 runs"),
        (1, ["pass", "passes"], "1 pass"),
        (2, ["pass", "passes"], "2 passes"),
    ],
)
def test_a_number_and_its_noun_agree(count: int, words: list[str], text: str) -> None:
    assert count_text(count, *words) == text
