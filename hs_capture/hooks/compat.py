"""What each SGLang offers.

All knowledge of releases is here, in ``obstacles.py`` and in ``contract.py``, by what a release has
rather than by its number. What has moved in the supported releases:

- The states of the layers: up to 0.5.13 the model adds up what it finds between two layers, which
  with fused all-reduce are partial sums of a rank (SGLang pull request 28343). From 0.5.14 on the
  layer hands them out complete, as a list, and from 0.5.17 on packed into one tensor.
- The rows of a batch: ``ForwardBatch.init_new`` gets a ModelWorkerBatch up to 0.5.12, then the
  ScheduleBatch itself.
- The ranks: functions up to 0.5.13, a parallel context from 0.5.14 on.
- Prefill: compiled by default on CUDA up to 0.5.14 (``tc_piecewise``; Kimi-K2.5 in 0.5.16 and
  0.5.17), in breakable CUDA graphs by default from 0.5.18 on.

Facts are from SGLang's source, read for each release; see docs/compatibility.md for what was run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hs_capture.errors import ConfigError
from hs_capture.hooks.contract import broken, broken_in_family
from hs_capture.hooks.families import SUPPORTED, Family
from hs_capture.hooks.obstacles import OTHERS_OBSTACLES, Host, require_no_obstacle
from hs_capture.settings import LAYERS

FIRST_RELEASE = (0, 5, 10)
"""The first release whose batches know their requests in the way that is read here."""
TESTED_RELEASES = (
    *("0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13.post1", "0.5.14", "0.5.15.post1"),
    *("0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
"""The releases that the matrix of the tests runs and compares with transformers."""

PREFILL_MODES = frozenset({"EXTEND", "MIXED", "SPLIT_PREFILL"})
"""Names of the forward modes that compute prompt rows. TARGET_VERIFY extends too, but drafts."""
DECODE_MODE = "DECODE"
"""Name of the forward mode that computes one row of each request, its latest token's."""
HEALTH_CHECK_PREFIX = "HEALTH_CHECK"
"""How SGLang names its own health-check requests (constants.py)."""
PROCESS_MARKS = ("sglang::", "sglang.launch_server", "sglang serve")
"""What the command line of a SGLang server process contains (setproctitle or as started)."""


def installed_release() -> tuple[str, Path] | None:
    """Return version and package folder (it need not exist) of the installed SGLang, if any."""
    try:
        found = distribution("sglang")
    except PackageNotFoundError:
        return None
    return found.version, Path(str(found.locate_file("sglang")))


def require_release(
    version: str, root: Path | None, *, follows_decode: bool = False
) -> tuple[str, ...]:
    """Return notes about SGLang `version` for run.json.

    A release that was not tested is taken when its source keeps the contract of the hooks. `root`
    is the folder of its package ``sglang``, None if that is not known.

    Raises:
        ConfigError: capture cannot be right with this release.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    first, last = ".".join(map(str, FIRST_RELEASE)), TESTED_RELEASES[-1]
    if numbers < FIRST_RELEASE:
        raise ConfigError(
            f"SGLang {version} is older than {first}, the first release that hs-capture can "
            "follow; upgrade SGLang or unset SGLANG_HS_DUMP_DIR"
        )
    if version in TESTED_RELEASES:
        return ()
    found = [] if root is None else broken(root, follows_decode=follows_decode)
    if found:
        raise ConfigError(
            f"SGLang {version} was not tested with this hs-capture, and lacks what hs-capture "
            f"relies on: {'; '.join(found)}. Upgrade hs-capture, install SGLang {last}, or unset "
            "SGLANG_HS_DUMP_DIR"
        )
    return (
        f"SGLang {version} is not among the tested releases, {first} to {last}"
        + (", but has every name that is relied on" if root is not None else ""),
    )


def require_family(version: str, root: Path, family: Family, server_args: Any) -> None:
    """Check that models of `family` can be captured with SGLang `version` and these settings.

    Raises:
        ConfigError: they cannot.
    """
    if family.with_kin:
        # Checked for every server, before its model was known.
        return
    found = broken_in_family(root, family)
    if found:
        raise ConfigError(
            f"{family.causal_lm} is captured from SGLang {family.since} on; SGLang {version} lacks "
            f"what hs-capture relies on: {'; '.join(found)}. Install SGLang {family.since} to "
            f"{TESTED_RELEASES[-1]}, or unset SGLANG_HS_DUMP_DIR"
        )
    require_no_obstacle(Host.of(server_args), OTHERS_OBSTACLES)


def require_served_alone(served: object, causal_lm: object, family: Family) -> None:
    """Check that the captured model `causal_lm` is the served one, or may be inside of it.

    Raises:
        ConfigError: it is inside of another one, which may compute with it in ways of its own.
    """
    if not family.with_kin and served is not causal_lm:
        raise ConfigError(
            f"{type(served).__name__} has a {family.causal_lm} inside, which hs-capture captures "
            "only where it is served by itself; unset SGLANG_HS_DUMP_DIR to serve it"
        )


def unsupported(served: object) -> ConfigError:
    """Return the error of a server whose model is of no family."""
    return ConfigError(
        f"{type(served).__name__} is no model that hs-capture captures, which are {SUPPORTED}; "
        "unset SGLANG_HS_DUMP_DIR to serve it"
    )


def require_layers(layers: tuple[int, ...], hand_out_states: bool) -> None:
    """Check the chosen layers, for a model whose layers may `hand_out_states` or not.

    Raises:
        ConfigError: one of them cannot be captured with this SGLang.
    """
    # The sum that is taken instead has no second term before the first layer.
    if -1 in layers and not hand_out_states:
        raise ConfigError(
            f"{LAYERS}: layer -1, the output of the embedding, can only be captured with SGLang "
            "0.5.14 and newer; leave it out or upgrade SGLang"
        )


def metrics_name(server_args: Any) -> str | None:
    """Return the model's name in SGLang's metrics, None when they are off."""
    if not server_args.enable_metrics:
        return None
    return str(server_args.served_model_name or server_args.model_path)


def extents(batch: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield (request, prefix length, extend length) of a prefill batch, in the order of its rows.

    `batch` is what ``ForwardBatch.init_new`` gets.
    """
    if hasattr(batch, "prefix_lens"):
        prefixes, extends = batch.prefix_lens, batch.extend_lens
    else:
        prefixes, extends = batch.extend_prefix_lens, batch.extend_seq_lens
    return zip(batch.reqs, prefixes, extends, strict=True)


def latest_extents(batch: Any) -> Iterator[tuple[Any, int]]:
    """Yield (request, position of its latest token) of a decode batch, in the order of its rows.

    `batch` is what ``ForwardBatch.init_new`` gets. Its lengths are kept on the host, and are right
    also where the tokens themselves are not known there yet. Rows beyond the requests are those of
    a beam search.
    """
    lengths: list[int] = batch.seq_lens_cpu.tolist()
    return ((req, length - 1) for req, length in zip(batch.reqs, lengths, strict=False))


def is_last_stage() -> bool:
    """Whether this process is of the last pipeline stage."""
    from sglang.srt.distributed.parallel_state import get_pp_group

    return bool(get_pp_group().is_last_rank)


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
    """Return this process's ranks."""
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return _ranks_by_function()
    parallel = get_parallel()
    return Ranks(
        tp=parallel.tp_rank,
        pp=parallel.pp_rank,
        dp=getattr(parallel, "dp_rank", None) or 0,
        attention_tp=parallel.attn_tp_rank,
        attention_dp=parallel.attn_dp_rank,
        attention_cp=parallel.attn_cp_rank,
    )


def _ranks_by_function() -> Ranks:
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import dp_attention

    return Ranks(
        tp=parallel_state.get_tensor_model_parallel_rank(),
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        dp=0,
        attention_tp=dp_attention.get_attention_tp_rank(),
        attention_dp=dp_attention.get_attention_dp_rank(),
        attention_cp=dp_attention.get_attention_cp_rank(),
    )


def eagle3_rule(causal_lm: type, config: Any, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return SGLang's internal layer ids for the `ids` of a draft model's config.

    Up to 0.5.12 each id grows by one; from 0.5.13 only when the first is 1. The class's own setter
    is asked, on a stand-in, so that the answer is this release's own.
    """
    model = SimpleNamespace(layers_to_capture=[])
    # Some hand the ids on to a method of their model, which marks its layers as well.
    model.set_eagle3_layers_to_capture = lambda chosen: vars(model).update(layers_to_capture=chosen)
    stand_in = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=config,
        model=model,
        capture_aux_hidden_states=False,
    )
    causal_lm.set_eagle3_layers_to_capture(stand_in, list(ids))  # type: ignore[attr-defined]
    return tuple(stand_in.model.layers_to_capture)
