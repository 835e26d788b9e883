"""With which server settings capture can be right."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hs_capture.errors import ConfigError
from hs_capture.hooks.decode_obstacles import DECODE_OBSTACLES
from hs_capture.hooks.obstacles import (
    OTHERS_OBSTACLES,
    Host,
    require_no_obstacle,
    require_patience,
)
from matrix import page


def host(
    layers_hand_out_states: bool = True, compiles_prefill: bool = False, **settings: object
) -> Host:
    return Host(SimpleNamespace(**settings), layers_hand_out_states, compiles_prefill)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"enable_attn_tp_input_scattered": True}, "--enable-attn-tp-input-scattered"),
        ({"enable_layernorm_sp": True}, "--enable-layernorm-sp"),
        ({"enable_prefill_cp": True}, "--enable-prefill-cp"),
        ({"enable_nsa_prefill_context_parallel": True}, "--enable-prefill-cp and its older names"),
        ({"attn_cp_size": 2}, "--attn-cp-size"),
        ({"disaggregation_mode": "decode"}, "prefill server"),
        ({"is_embedding": True}, "--is-embedding"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
    ],
)
def test_settings_that_make_rows_wrong_are_refused(setting: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        require_no_obstacle(host(**setting))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"moe_a2a_backend": "deepep"}, "--moe-a2a-backend"),
        ({"ep_size": 2}, "--ep-size"),
        ({"moe_dense_tp_size": 1}, "--moe-dense-tp-size"),
        ({"rl_on_policy_target": "fsdp"}, "--rl-on-policy-target"),
    ],
)
def test_some_settings_are_refused_for_other_families_than_deepseeks(
    setting: dict[str, object], said: str
) -> None:
    require_no_obstacle(host(**setting))
    with pytest.raises(ConfigError, match=said):
        require_no_obstacle(host(**setting), OTHERS_OBSTACLES)
    plain = {"moe_a2a_backend": "none", "ep_size": 1, "moe_dense_tp_size": None}
    require_no_obstacle(host(**plain), OTHERS_OBSTACLES)


@pytest.mark.parametrize(
    ("setting", "backend", "said"),
    [
        ({"speculative_algorithm": "EAGLE3"}, "disabled", "--speculative-algorithm"),
        ({"disaggregation_mode": "prefill"}, "full", "--disaggregation-mode prefill"),
        ({"enable_torch_compile": True}, "full", "--enable-torch-compile"),
        ({}, "another", "--cuda-graph-backend-decode full or --disable-decode-cuda-graph"),
        ({"enable_dp_attention": True}, "full", "--disable-decode-cuda-graph"),
        ({"pp_size": 2}, "full", "--disable-decode-cuda-graph"),
    ],
)
def test_some_settings_are_refused_where_generated_tokens_are_captured(
    setting: dict[str, object], backend: str, said: str
) -> None:
    found = replace(host(**setting), decode_backend=backend)
    require_no_obstacle(found)
    with pytest.raises(ConfigError, match=f"{said}.*SGLANG_HS_PHASES=prefill"):
        require_no_obstacle(found, DECODE_OBSTACLES)


@pytest.mark.parametrize("backend", ["full", "disabled"])
def test_generated_tokens_are_captured_in_graphs_and_without(backend: str) -> None:
    plain = {"tp_size": 8, "pp_size": 1, "disaggregation_mode": "null"}
    require_no_obstacle(replace(host(**plain), decode_backend=backend), DECODE_OBSTACLES)
    eager = replace(host(enable_dp_attention=True, pp_size=2), decode_backend="disabled")
    require_no_obstacle(eager, DECODE_OBSTACLES)


def test_plain_settings_and_missing_ones_are_fine() -> None:
    require_no_obstacle(host())
    require_no_obstacle(
        host(speculative_algorithm="EAGLE3", attn_cp_size=1, disaggregation_mode="prefill")
    )


def test_a_time_out_that_wakes_the_watchdog_is_refused() -> None:
    args = SimpleNamespace(watchdog_timeout=300)
    require_patience(args, 100.0)
    with pytest.raises(ConfigError, match=r"SGLANG_HS_BLOCK_TIMEOUT=100\.5: .* 300 seconds"):
        require_patience(args, 100.5)


@pytest.mark.parametrize("args", [SimpleNamespace(), SimpleNamespace(watchdog_timeout=None)])
def test_a_time_out_that_a_health_check_may_not_bear_is_noted(args: SimpleNamespace) -> None:
    assert require_patience(args, 5.0) == ()
    (note,) = require_patience(args, 5.5)
    assert note.startswith("SGLANG_HS_BLOCK_TIMEOUT=5.5: while the ring is full SGLang's /health ")


def test_partial_sums_are_refused_with_the_way_out() -> None:
    """Where the model adds up the states itself, fused all-reduce leaves them partial sums."""
    with pytest.raises(ConfigError, match="--enforce-disable-flashinfer-allreduce-fusion"):
        require_no_obstacle(host(False, False, tp_size=8, enable_flashinfer_allreduce_fusion=True))
    with pytest.raises(ConfigError, match="without --enable-aiter-allreduce-fusion"):
        require_no_obstacle(host(False, False, tp_size=2, enable_aiter_allreduce_fusion=True))


@pytest.mark.parametrize(
    "fine",
    [
        host(True, False, tp_size=8, enable_flashinfer_allreduce_fusion=True),
        host(False, False, tp_size=1, enable_flashinfer_allreduce_fusion=True),
        host(False, False, tp_size=8, enable_flashinfer_allreduce_fusion=False),
    ],
    ids=["layers-hand-out-states", "one-rank", "fusion-off"],
)
def test_whole_sums_are_not_refused(fine: Host) -> None:
    require_no_obstacle(fine)


def test_compiled_prefill_is_refused_with_the_flag_for_each_release() -> None:
    with pytest.raises(ConfigError, match=r"--disable-prefill-cuda-graph .*--disable-piecewise"):
        require_no_obstacle(host(compiles_prefill=True))


def test_every_obstacle_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"--enable-two-batch-overlap .*; SGLang is about to"):
        require_no_obstacle(host(compiles_prefill=True, enable_two_batch_overlap=True))


def test_the_documentation_lists_the_refusals() -> None:
    assert page.written("refusals") == page.refusals()
