"""Models are told apart by what their configs say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from hs_capture.hooks.config_digest import config_digest

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "transformers_version": "4.40.0",
}


def _digest(folder: Path | str) -> str:
    return config_digest(AutoConfig.from_pretrained(folder))


def _write(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def test_a_model_is_the_same_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _write(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    moved = shutil.copytree(here, tmp_path / "moved")
    digests = {_digest(path) for path in (here, "model", "./model", f"{here}/", moved)}
    assert len(digests) == 1
    assert len(digests.pop()) == 64


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": 128}, {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}],
    ids=["width", "inner"],
)
def test_another_config_is_another_model(tmp_path: Path, change: dict[str, Any]) -> None:
    assert _digest(_write(tmp_path / "a")) != _digest(_write(tmp_path / "b", **change))


def test_the_version_of_what_read_it_does_not_matter_nor_do_inner_paths(tmp_path: Path) -> None:
    """Configs of models with images have those of their parts inside."""

    def wrapped(inner: dict[str, Any]) -> PretrainedConfig:
        return PretrainedConfig(text_config=inner)

    one = wrapped({"hidden_size": 64, "_name_or_path": "a", "transformers_version": "4.40.0"})
    other = wrapped({"hidden_size": 64, "_name_or_path": "b", "transformers_version": "5.8.1"})
    assert config_digest(one) == config_digest(other)
    assert config_digest(one) != config_digest(wrapped({"hidden_size": 65}))
