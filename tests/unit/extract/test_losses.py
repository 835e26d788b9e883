"""A prompt is suspected after some losses among others, and blamed after two alone."""

from __future__ import annotations

import pytest

from hs_capture.extract.losses import Losses
from hs_capture.extract.pause import pause


@pytest.mark.parametrize(("retries", "among"), [(0, 2), (1, 2), (2, 2), (3, 3), (5, 5)])
def test_losses_among_others_and_alone(retries: int, among: int) -> None:
    losses = Losses(retries)
    told = []
    for time in range(1, among + 3):
        assert losses.add(7) == time
        told.append((losses.suspects(7), losses.alone(7), losses.blames(7)))
    innocent = (False, 0, False)
    assert told == [innocent] * (among - 1) + [(True, 0, False), (True, 1, False), (True, 2, True)]
    assert (losses.suspects(8), losses.alone(8), losses.blames(8)) == innocent
    losses.forget(7)
    losses.forget(8)
    assert (losses.suspects(7), losses.alone(7), losses.blames(7)) == innocent


def test_pauses_double_up_to_ten_seconds() -> None:
    assert [pause(number) for number in range(8)] == [0, 0.5, 1, 2, 4, 8, 10, 10]
    assert pause(5000) == 10
