"""Types of command-line arguments: text in, a checked value or a clear complaint out."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path


def path(text: str) -> Path:
    """An absolute path."""
    if not text.strip():
        raise ArgumentTypeError("the path is empty")
    return Path(text).absolute()


def count(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or not 1 <= int(text) < 10**9:
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def layer_ids(text: str) -> tuple[int, ...]:
    """Layer ids with commas between them; -1 is the embedding."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a list of layer ids such as 1,29,57") from None


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e18:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def natural(text: str) -> int:
    """A whole number of 0 or more."""
    if not text.isdecimal() or int(text) >= 10**9:
        raise ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def shard(text: str) -> tuple[int, int]:
    """A turn and a number of turns, as in 0/8 to 7/8."""
    turn, _, of = text.partition("/")
    if not (turn.isdecimal() and of.isdecimal() and int(turn) < int(of)):
        raise ArgumentTypeError(f"{text!r} is not a shard such as 0/8, the first of eight")
    return int(turn), int(of)
