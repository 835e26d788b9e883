"""Which weights the server computes with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ServedWeights:
    """The state of the weights, and of the prefix cache that was computed with them."""

    version: int = 0
    """How often they have been changed."""
    changing: bool = False
    """Whether a change is under way that takes several calls."""
    stale_cache: bool = False
    """Whether the prefix cache may hold what weights of an earlier version computed."""

    def are_mixed(self, cached_tokens: int) -> bool:
        """Whether a request that comes now mixes weights, with so many tokens from the cache."""
        return self.changing or (self.stale_cache and cached_tokens > 0)

    def begin_change(self) -> None:
        """Say that until the next `change` the weights may be anything."""
        self.changing = self.stale_cache = True

    def change(self) -> None:
        """Say that they are others now, whole ones."""
        self.version += 1
        self.changing = False
