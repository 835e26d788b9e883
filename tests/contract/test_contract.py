"""Every name of SGLang that the hooks rely on is in every supported release.

The day a release breaks one, the test of the newest release says which.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.released import Renamed, newest, unpack
from hs_capture.errors import ConfigError
from hs_capture.hooks.compat import TESTED_RELEASES, require_release
from hs_capture.hooks.contract import broken, broken_in, broken_in_family, family_contract
from hs_capture.hooks.families import DEEPSEEK_V2, FAMILIES, Family
from hs_capture.hooks.source import Source
from hs_capture.layer_ids import release_of

OLDEST, NEWEST = TESTED_RELEASES[0], TESTED_RELEASES[-1]
OTHERS = [family for family in FAMILIES if family is not DEEPSEEK_V2]


@pytest.fixture(scope="session")
def newest_source(released: Callable[[str], Path]) -> Source:
    """The newest release, each of whose modules is parsed once."""
    return Source(released(NEWEST))


@pytest.fixture(scope="session")
def changed(released: Callable[[str], Path]) -> Callable[[str, str], list[str]]:
    """Return what is broken in a release in which a name is another."""
    sources = {version: Source(released(version)) for version in (OLDEST, NEWEST)}
    return lambda version, name: broken_in(
        Renamed(sources[version], name, "something_else"), follows_decode=True
    )


@pytest.mark.parametrize("version", TESTED_RELEASES)
def test_a_supported_release_keeps_the_contract(
    released: Callable[[str], Path], version: str
) -> None:
    """Read from the wheel's source, without importing it."""
    before = set(sys.modules)
    assert broken(released(version), follows_decode=True) == []
    assert not {name for name in set(sys.modules) - before if name.startswith("sglang")}
    assert require_release(version, None) == ()


def test_the_newest_release_of_today_keeps_the_contract(tmp_path: Path) -> None:
    """It may be newer than this tree: then this is the test that says what it broke."""
    version, path = newest()
    assert broken(unpack(path, tmp_path), follows_decode=True) == [], f"SGLang {version}"


@pytest.mark.parametrize("family", OTHERS, ids=lambda family: family.stem)
@pytest.mark.parametrize("version", TESTED_RELEASES)
def test_a_family_is_captured_from_the_release_on_that_its_row_names(
    released: Callable[[str], Path], version: str, family: Family
) -> None:
    """Every release from then on has what is relied on, and none before: those are refused."""
    found = broken_in_family(released(version), family)
    if release_of(version) >= release_of(family.since):
        assert found == []
    else:
        assert any("attn_boundary" in text for text in found), found


@pytest.mark.parametrize("family", OTHERS, ids=lambda family: family.stem)
@pytest.mark.parametrize(
    "name",
    [
        *("layers_to_capture", "norm", "start_layer", "logits_processor", "pp_group"),
        *("capture_aux_hidden_states", "load_weights", "set_eagle3_layers_to_capture"),
        *("layers", "forward_batch", "attn_boundary"),
    ],
)
def test_a_name_that_a_family_has_lost_is_reported(
    newest_source: Source, family: Family, name: str
) -> None:
    """The report names the file of the family, or of the class that it derives from."""
    source = Renamed(newest_source, name, "something_else")
    found = [text for part in family_contract(family) for text in part.broken(source)]
    files = [f"{module}.py: " for module in (family.module, *(family.base or ())[:1])]
    assert any(name in text and any(file in text for file in files) for text in found), found


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("DeepseekV2ForCausalLM", "srt/models/deepseek_v2.py: DeepseekV2ForCausalLM"),
        ("capture_aux_hidden_states", "deepseek_v2.py: DeepseekV2ForCausalLM"),
        ("logits_processor", "deepseek_v2.py: DeepseekV2ForCausalLM"),
        ("layers_to_capture", "deepseek_v2.py: DeepseekV2Model"),
        ("start_layer", "deepseek_v2.py: DeepseekV2Model"),
        ("set_eagle3_layers_to_capture", "deepseek_v2.py: DeepseekV2ForCausalLM"),
        ("aux_hidden_states", "logits_processor.py: LogitsProcessor.forward"),
        ("variance_epsilon", "layernorm.py: RMSNorm"),
        ("is_draft_worker", "model_runner.py: ModelRunner"),
        ("load_model", "model_runner.py: ModelRunner"),
        ("context_len", "model_config.py: ModelConfig"),
        ("init_new", "forward_batch_info.py: ForwardBatch"),
        ("SPLIT_PREFILL", "forward_batch_info.py: ForwardMode"),
        ("origin_input_ids_unpadded", "schedule_batch.py: Req"),
        ("cached_tokens", "schedule_batch.py: Req"),
        ("reqs", "schedule_batch.py"),
        ("HEALTH_CHECK_RID_PREFIX", "srt/constants.py"),
        ("get_pp_group", "parallel_state.py"),
        ("disaggregation_mode", "ServerArgs"),
        ("load_weights", "deepseek_v2.py: DeepseekV2ForCausalLM"),
        ("lora_id", "schedule_batch.py: Req"),
        ("output_ids", "schedule_batch.py: Req"),
        ("finished_reason", "schedule_batch.py: Req"),
        ("rids", "forward_batch_info.py: ForwardBatch"),
        ("speculative_algorithm", "ServerArgs"),
        ("lora_refs", "lora_manager.py: LoRAManager"),
        ("flush_cache", "io_struct.py: UpdateWeightsFromTensorReqInput"),
    ],
)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_name_that_is_gone_is_reported(
    changed: Callable[[str, str], list[str]], version: str, name: str, place: str
) -> None:
    """The report names the file, the class and the name."""
    found = changed(version, name)
    assert any(name in text and place in text for text in found), found


@pytest.mark.parametrize(
    ("version", "name", "ability"),
    [
        (OLDEST, "extend_prefix_lens", "rows of a batch"),
        (NEWEST, "prefix_lens", "rows of a batch"),
        (OLDEST, "get_attention_tp_rank", "ranks of a process"),
        (NEWEST, "get_parallel", "ranks of a process"),
        (NEWEST, "attn_cp_rank", "ranks of a process"),
        (OLDEST, "disable_piecewise_cuda_graph", "how prefill runs"),
        (NEWEST, "check_cuda_graph_backend", "how prefill runs"),
        (OLDEST, "check_finished", "end of a request"),
        (NEWEST, "update_finish_state", "end of a request"),
        (OLDEST, "seq_lens_cpu", "lengths of a decode batch"),
        (NEWEST, "seq_lens_cpu", "lengths of a decode batch"),
        (OLDEST, "capture_bs", "decode graphs, the largest first"),
        (NEWEST, "capture_bs", "decode graphs, the largest first"),
        (OLDEST, "disable_cuda_graph", "how decode runs"),
        (OLDEST, "residual", "states of the layers"),
        (NEWEST, "captured_last_layer_outputs", "states of the layers"),
        (OLDEST, "enable_prefill_context_parallel", "context parallelism"),
        (NEWEST, "enable_prefill_cp", "context parallelism"),
        (OLDEST, "SchedulerUpdateWeightsMixin", "changes of weights"),
        (NEWEST, "update_weights_from_ipc", "changes of weights"),
    ],
)
def test_an_ability_that_is_there_in_no_known_way_is_reported(
    changed: Callable[[str, str], list[str]], version: str, name: str, ability: str
) -> None:
    """What has moved between releases before is named with all the ways that are known."""
    found = changed(version, name)
    assert any(text.startswith(f"{ability}: ") and name in text for text in found), found


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (NEWEST, "enable_layernorm_sp"),
        (OLDEST, "enable_flashinfer_allreduce_fusion"),
        (NEWEST, "end_weight_update"),
        (NEWEST, "FULL"),
        (NEWEST, "DISABLED"),
    ],
)
def test_an_option_of_some_releases_is_missed_in_those(
    changed: Callable[[str, str], list[str]], version: str, name: str
) -> None:
    """An option that came later, or went, is asked for where what it switches is there."""
    assert [text for text in changed(version, name) if f".{name}:" in text]


def test_parameters_in_another_order_are_reported(
    released: Callable[[str], Path], tmp_path: Path
) -> None:
    """Arguments are taken by position."""
    shutil.copytree(released(NEWEST), tmp_path / "sglang")
    file = tmp_path / "sglang" / "srt" / "model_executor" / "forward_batch_info.py"
    text = file.read_text()
    swapped = text.replace(
        "batch: ScheduleBatch,\n        model_runner: ModelRunner,",
        "model_runner: ModelRunner,\n        batch: ScheduleBatch,",
    )
    assert swapped != text
    file.write_text(swapped)
    (found,) = broken(tmp_path / "sglang")
    assert found == (
        "srt/model_executor/forward_batch_info.py: ForwardBatch.init_new: expected the parameters "
        "(cls, batch, model_runner): (cls, model_runner, batch)"
    )


def test_an_unknown_release_is_taken_with_a_note_when_it_keeps_the_contract(
    released: Callable[[str], Path],
) -> None:
    """It is one that came after this tree."""
    (note,) = require_release("0.9.0", released(NEWEST))
    assert note == (
        f"SGLang 0.9.0 is not among the tested releases, 0.5.10 to {NEWEST}, but has every name "
        "that is relied on"
    )


def test_an_unknown_release_that_breaks_the_contract_is_refused_with_the_name(
    released: Callable[[str], Path], tmp_path: Path
) -> None:
    """The line says what is missing and what to do."""
    root = tmp_path / "sglang"
    shutil.copytree(released(NEWEST), root)
    for file in root.rglob("*.py"):
        file.write_text(file.read_text().replace("is_draft_worker", "is_draft"))
    with pytest.raises(
        ConfigError, match=r"SGLang 0\.9\.0 .*ModelRunner\.is_draft_worker.*Upgrade"
    ):
        require_release("0.9.0", root)
