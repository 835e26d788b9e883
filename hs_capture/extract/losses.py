"""How often a server went away with a prompt: is the prompt what brings it down?"""

from __future__ import annotations

from dataclasses import dataclass

_ALONE = 2
"""Losses with no other prompt under way until the prompt is blamed. One may be chance: a server
that is stopped for maintenance stops under whatever it has."""

_AMONG = 2
"""Losses among others until a prompt is suspected, at the least."""


@dataclass
class _Count:
    among: int = 0
    alone: int = 0


class Losses:
    """Of prompts that are not done. A prompt is with one thread at a time, so no lock is needed."""

    def __init__(self, retries: int) -> None:
        """A prompt is suspected when it was lost `retries` times, or twice if that is more.

        From then on it has to be asked for alone.
        """
        self._among = max(retries, _AMONG)
        self._counts: dict[int, _Count] = {}

    def add(self, number: int) -> int:
        """Count a loss of this prompt; returns how many there were."""
        suspected = self.suspects(number)
        count = self._counts.setdefault(number, _Count())
        if suspected:
            count.alone += 1
        else:
            count.among += 1
        return count.among + count.alone

    def suspects(self, number: int) -> bool:
        """Whether this prompt has to be asked for alone."""
        count = self._counts.get(number)
        return count is not None and count.among >= self._among

    def alone(self, number: int) -> int:
        """How often it was lost alone."""
        count = self._counts.get(number)
        return 0 if count is None else count.alone

    def blames(self, number: int) -> bool:
        """Whether the prompt, and not the server, is at fault."""
        return self.alone(number) >= _ALONE

    def forget(self, number: int) -> None:
        """The prompt is done."""
        self._counts.pop(number, None)
