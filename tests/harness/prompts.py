"""Prompts of token ids that share no prefix, so that the prefix cache never has a part of one."""

from __future__ import annotations

import random

from harness.tiny_model import VOCAB

FIRST_ORDINARY_TOKEN = 2
PROMPTS = VOCAB - FIRST_ORDINARY_TOKEN


def prompt(number: int, length: int) -> list[int]:
    """Return ``length`` random ordinary tokens (at least one), always the same for a number.

    Two numbers below ``PROMPTS`` never begin with the same token.
    """
    if not 0 <= number < PROMPTS:
        raise ValueError(f"prompt number {number}: expected 0 to {PROMPTS - 1}")
    rest = random.Random(number).choices(range(FIRST_ORDINARY_TOKEN, VOCAB), k=length - 1)
    return [FIRST_ORDINARY_TOKEN + number, *rest]
