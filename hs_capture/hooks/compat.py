"""What this SGLang offers, and what of it capture cannot be right with.

Facts are from SGLang's source, read for each release named; see docs/compatibility.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hs_capture.errors import ConfigError

FIRST_RELEASE = (0, 5, 14)
"""The first release whose layers hand out complete states (before, with fused all-reduce, partial
sums) and whose embedding output can be captured (SGLang pull request 28343)."""
TESTED_RELEASES = ("0.5.23",)

PREFILL_MODES = frozenset({"EXTEND", "MIXED", "SPLIT_PREFILL"})
"""Names of the forward modes that compute prompt rows. TARGET_VERIFY extends too, but drafts."""
ROWLESS_MODES = frozenset({"DECODE", "IDLE"})
HEALTH_CHECK_PREFIX = "HEALTH_CHECK"
"""How SGLang names its own health-check requests (constants.py)."""
PROCESS_MARKS = ("sglang::", "sglang.launch_server", "sglang serve")
"""What the command line of a SGLang server process contains (setproctitle or as started)."""


@dataclass(frozen=True)
class Obstacle:
    """A server setting with which captured rows would be wrong or would not come."""

    present: Callable[[Any], bool]
    text: str


def _is_on(name: str) -> Callable[[Any], bool]:
    return lambda args: bool(getattr(args, name, False))


def _is_over_one(name: str) -> Callable[[Any], bool]:
    return lambda args: (getattr(args, name, 1) or 1) > 1


OBSTACLES = (
    Obstacle(
        lambda args: getattr(args, "speculative_algorithm", None) is not None,
        "the server runs speculative decoding (--speculative-algorithm), which chooses its own "
        "layers; start a server without it for capture",
    ),
    Obstacle(
        _is_on("enable_return_aux_hidden_states"),
        "--enable-return-aux-hidden-states chooses its own layers; start the server without it",
    ),
    Obstacle(
        _is_on("enable_two_batch_overlap"),
        "--enable-two-batch-overlap does not hand out layer outputs; start the server without it",
    ),
    Obstacle(
        _is_on("enable_attn_tp_input_scattered"),
        "--enable-attn-tp-input-scattered leaves each rank a part of the rows; "
        "start the server without it",
    ),
    Obstacle(
        _is_on("enable_layernorm_sp"),
        "--enable-layernorm-sp leaves each rank a part of the rows; start the server without it",
    ),
    Obstacle(
        lambda args: _is_on("enable_prefill_cp")(args) or _is_over_one("attn_cp_size")(args),
        "context parallelism (--enable-prefill-cp, --attn-cp-size) leaves each rank a part of the "
        "rows; start the server without it",
    ),
    Obstacle(
        lambda args: getattr(args, "disaggregation_mode", "null") == "decode",
        "a decode server of a disaggregated pair prefills nothing; capture on the prefill server",
    ),
)


def require_release(version: str) -> tuple[str, ...]:
    """Return notes about SGLang `version` for run.json.

    Raises:
        ConfigError: capture cannot be right with this release.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < FIRST_RELEASE:
        raise ConfigError(
            f"SGLang {version} is older than {'.'.join(map(str, FIRST_RELEASE))}, the first "
            "release that hands out complete layer outputs; upgrade SGLang or unset "
            "SGLANG_HS_DUMP_DIR"
        )
    if version in TESTED_RELEASES:
        return ()
    return (f"SGLang {version} is not among the tested releases: {', '.join(TESTED_RELEASES)}",)


def require_no_obstacle(server_args: Any) -> None:
    """Check the server's settings.

    Raises:
        ConfigError: one of them makes correct capture impossible.
    """
    for obstacle in OBSTACLES:
        if obstacle.present(server_args):
            raise ConfigError(obstacle.text)


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among those that serve the model together."""

    tp: int
    pp: int
    dp: int
    attention_tp: int
    attention_dp: int
    attention_cp: int

    @property
    def holds_full_rows(self) -> bool:
        """Whether this process is the one of its group that writes."""
        return self.attention_tp == 0 and self.attention_cp == 0

    @property
    def name(self) -> str:
        """Name of the rank in file names."""
        return f"dp{self.dp or self.attention_dp}-pp{self.pp}-tp{self.tp}"


def ranks() -> Ranks:
    """Return this process's ranks (SGLang 0.5.14 and later)."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return Ranks(
        tp=parallel.tp_rank,
        pp=parallel.pp_rank,
        dp=getattr(parallel, "dp_rank", None) or 0,
        attention_tp=parallel.attn_tp_rank,
        attention_dp=parallel.attn_dp_rank,
        attention_cp=parallel.attn_cp_rank,
    )


def eagle3_rule(causal_lm: type, config: Any, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return SGLang's internal layer ids for the `ids` of a draft model's config.

    Up to 0.5.12 each id grows by one; from 0.5.13 only when the first is 1. The class's own setter
    is asked, on a stand-in, so that the answer is this release's own.
    """
    stand_in = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=config,
        model=SimpleNamespace(layers_to_capture=[]),
        capture_aux_hidden_states=False,
    )
    causal_lm.set_eagle3_layers_to_capture(stand_in, list(ids))  # type: ignore[attr-defined]
    return tuple(stand_in.model.layers_to_capture)
