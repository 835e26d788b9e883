"""Each test here must leave nothing behind. What it finds is no matter of time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from leftovers import nothing_left

__all__ = ["nothing_left"]

# An example that takes long says something of the machine, and nothing of what is tested.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
