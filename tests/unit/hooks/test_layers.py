"""Layer choices become layer ids, or a refusal that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hs_capture.errors import ConfigError
from hs_capture.hooks.layers import settle_layers
from hs_capture.settings import LayerChoice

CPU_HOST = Path(__file__).resolve().parents[2] / "harness" / "cpu_host"


def ids(*layers: int) -> LayerChoice:
    return LayerChoice("ids", layers)


def never(asked: tuple[int, ...]) -> tuple[int, ...]:
    """An EAGLE-3 rule for choices that must not ask for it."""
    raise AssertionError(asked)


def settle(choice: LayerChoice, num_layers: int = 61, first_local: int = 0) -> tuple[int, ...]:
    return settle_layers(choice, num_layers, first_local, never)


@pytest.mark.parametrize(
    ("num_layers", "layers"),
    [(61, (1, 29, 57)), (27, (1, 12, 23)), (8, (1, 3, 4)), (7, (1, 2, 3))],
)
def test_auto_is_eagle3s_low_middle_and_high_layer(
    num_layers: int, layers: tuple[int, ...]
) -> None:
    assert settle(LayerChoice("auto"), num_layers) == layers


@pytest.mark.parametrize("num_layers", [1, 2, 4, 5, 6])
def test_auto_is_refused_where_the_three_are_not_distinct(num_layers: int) -> None:
    with pytest.raises(ConfigError, match=rf"LAYERS=auto needs .* this one has {num_layers};"):
        settle(LayerChoice("auto"), num_layers)


def test_ids_are_ascending_and_may_hold_the_embedding_and_the_last_but_one() -> None:
    assert settle(ids(59, -1, 0)) == (-1, 0, 59)
    assert settle(ids(-1), 1) == (-1,)


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ((60,), "60: layer 60 is the last of this model's 61 layers.*SGLANG_HS_FINAL=pre_norm"),
        ((61,), "61: layer 61 does not exist: .*ids go from -1 .* to 59"),
        ((1, -2), "1,-2: layer -2 does not exist"),
        ((3, 4, 3), "3,4,3: a layer is named twice"),
    ],
)
def test_ids_that_the_model_does_not_have_are_refused(layers: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"SGLANG_HS_LAYERS={reason}"):
        settle(ids(*layers))


def test_the_last_pipeline_stage_has_its_layers_and_the_output_before_them() -> None:
    assert settle(ids(29, 30, 59), first_local=30) == (29, 30, 59)
    with pytest.raises(ConfigError, match=r"layer 28 is computed by an earlier.*from 29 on"):
        settle(ids(28, 30), first_local=30)
    with pytest.raises(ConfigError, match="layer 1 is computed by an earlier"):
        settle(LayerChoice("auto"), first_local=30)


def test_eagle3_ids_are_what_the_server_makes_of_them() -> None:
    """The rule's answer is SGLang's ids, one above ours; the same refusals hold."""

    def rule(asked: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i + 1 for i in asked) if asked[0] == 1 else asked

    def resolve(*asked: int) -> tuple[int, ...]:
        return settle_layers(LayerChoice("eagle3", asked), 61, 0, rule)

    assert resolve(2, 30, 58) == resolve(1, 29, 57) == (1, 29, 57)
    assert resolve(0, 5) == (-1, 4)
    with pytest.raises(
        ConfigError, match=r"eagle3:2,61 \(here the outputs of layers 1,60\): layer 60 is"
    ):
        resolve(2, 61)
    with pytest.raises(ConfigError, match="a layer is named twice"):
        resolve(2, 2)


def test_the_installed_sglangs_own_rule_is_followed() -> None:
    """Both ways that draft configs write EAGLE-3's layers come out as the same layers."""
    code = """
import json
from types import SimpleNamespace
from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM
from hs_capture.hooks.compat import eagle3_rule
from hs_capture.hooks.layers import settle_layers
from hs_capture.settings import LayerChoice
config = SimpleNamespace(num_hidden_layers=61)
rule = lambda ids: eagle3_rule(DeepseekV2ForCausalLM, config, ids)
print(json.dumps([
    settle_layers(LayerChoice("eagle3", ids), 61, 0, rule)
    for ids in [(2, 30, 58), (1, 29, 57)]
]))
"""
    environ = {name: value for name, value in os.environ.items() if "SGLANG" not in name}
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**environ, "PYTHONPATH": str(CPU_HOST)},
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    ).stdout
    assert json.loads(said.splitlines()[-1]) == [[1, 29, 57], [1, 29, 57]]
