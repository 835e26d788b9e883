"""Which SGLang releases capture can be right with, and how their batches and ranks are read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hs_capture.errors import ConfigError
from hs_capture.hooks.compat import (
    TESTED_RELEASES,
    Ranks,
    extents,
    latest_extents,
    require_layers,
    require_release,
)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.9.post2", "0.5.4", "0.4.9", "0.5"])
def test_releases_before_the_first_right_one_are_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=f"SGLang {version} is older than 0.5.10, .* upgrade"):
        require_release(version, None)


@pytest.mark.parametrize("version", TESTED_RELEASES)
def test_a_tested_release_has_no_note_and_its_source_is_not_read(version: str) -> None:
    assert require_release(version, Path("/nowhere")) == ()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.24.dev3+g1234", "0.6.0", "1.0"])
def test_another_release_is_noted_when_its_source_is_not_to_be_had(version: str) -> None:
    assert require_release(version, None) == (
        f"SGLang {version} is not among the tested releases, 0.5.10 to {TESTED_RELEASES[-1]}",
    )


def test_another_release_is_refused_when_its_source_lacks_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ModelRunner\.load_model: expected a function"):
        require_release("0.6.0", tmp_path)


def test_the_embedding_is_refused_where_only_sums_can_be_had() -> None:
    require_layers((-1, 3), hand_out_states=True)
    require_layers((0, 3), hand_out_states=False)
    with pytest.raises(ConfigError, match=r"SGLANG_HS_LAYERS: layer -1, .* SGLang 0\.5\.14"):
        require_layers((-1, 3), hand_out_states=False)


def test_extents_are_read_from_either_kind_of_batch() -> None:
    """A batch of the scheduler, or the copy of it that was handed on before SGLang 0.5.13."""
    new = SimpleNamespace(reqs=["a", "b"], prefix_lens=[0, 4], extend_lens=[3, 2])
    old = SimpleNamespace(reqs=["a", "b"], extend_prefix_lens=[0, 4], extend_seq_lens=[3, 2])
    assert list(extents(new)) == list(extents(old)) == [("a", 0, 3), ("b", 4, 2)]
    with pytest.raises(ValueError, match="shorter"):
        list(extents(SimpleNamespace(reqs=["a", "b"], prefix_lens=[0], extend_lens=[1])))


def test_a_decode_batch_has_one_row_a_request_behind_what_it_had() -> None:
    """Rows beyond the requests are those of a beam search."""
    batch = SimpleNamespace(reqs=["a", "b"], seq_lens_cpu=torch.tensor([4, 9, 9, 9]))
    assert list(latest_extents(batch)) == [("a", 3), ("b", 8)]


def test_one_rank_of_an_attention_group_writes_and_its_name_tells_it_apart() -> None:
    first = Ranks(tp=0, pp=1, dp=2, attention_tp=0, attention_dp=2, attention_cp=0)
    assert first.holds_full_rows
    assert first.name == "dp2-pp1-tp0"
    assert not Ranks(1, 0, 0, attention_tp=1, attention_dp=0, attention_cp=0).holds_full_rows
    assert not Ranks(1, 0, 0, attention_tp=0, attention_dp=0, attention_cp=1).holds_full_rows
    assert Ranks(4, 0, 0, attention_tp=0, attention_dp=1, attention_cp=0).name == "dp1-pp0-tp4"
