"""A draft model is never attached to, whatever class it is of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hs_capture.hooks import model, runner


class Untouched:
    """A model whose every attribute would be an error to look at or to set."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was looked at")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{name} was set")


def test_a_draft_workers_model_is_built_without_us(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MistralLarge3ForCausalLMEagle and a STANDALONE draft run the very __init__ that is wrapped.

    SGLang's draft worker loads them by a runner that says so.
    """
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path / "dump"))
    draft_worker = SimpleNamespace(is_draft_worker=True)
    built: list[Untouched] = []

    def load_model() -> str:
        def initialize() -> None:
            built.append(draft)

        draft = Untouched()
        model.around_causal_lm_init(initialize, draft, (), {})
        return "loaded"

    assert runner.around_load_model(load_model, draft_worker, (), {}) == "loaded"
    assert len(built) == 1
    assert model.attachment() is None
    assert not (tmp_path / "dump").exists()


def test_a_drafts_forward_is_passed_on_as_it_is() -> None:
    """Its result is SGLang's own: MistralLarge3EagleModel insists on a bare tensor."""
    states = object()
    assert model.around_model_forward(lambda *_: states, Untouched(), (1, 2), {}) is states


def test_batches_of_a_draft_runner_are_not_announced() -> None:
    """Neither when they are prepared nor when they run."""
    batch = Untouched()
    draft_runner = SimpleNamespace(is_draft_worker=True)
    assert runner.around_init_new(lambda *_: batch, None, (batch, draft_runner), {}) is batch
    assert runner.around_forward(lambda *_: batch, draft_runner, (batch,), {}) is batch
