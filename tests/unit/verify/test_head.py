"""The head of a checkpoint, read from its files, computes what transformers' does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.tiny_v3 import build_tiny_kimi, build_tiny_v3
from hs_capture import ConfigError
from hs_capture.norm import rms_norm
from hs_capture.verify.checkpoint import open_checkpoint
from hs_capture.verify.head import score


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny DeepSeek-V3 with random weights."""
    return build_tiny_v3(tmp_path_factory.mktemp("model") / "v3")


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


def configure(path: Path, **changes: Any) -> None:
    """Change config.json; None takes a key away."""
    config = {**json.loads((path / "config.json").read_text()), **changes}
    kept = {name: value for name, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_are_those_of_transformers_within_the_bound(model: Path, dtype: torch.dtype) -> None:
    """RMSNorm and lm_head of transformers in this dtype; and the bound is a small one."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    states = (3 * torch.randn(50, 128, generator=torch.Generator().manual_seed(5))).to(dtype)
    tokens = torch.arange(50) * 20
    with torch.no_grad():
        logits = theirs.lm_head(theirs.model.norm(states)).float()
    logprobs = logits.log_softmax(-1)
    checkpoint = open_checkpoint(model)
    normed = rms_norm(states.float(), checkpoint.norm, checkpoint.eps)
    ours = score(normed, tokens, checkpoint.head, dtype, 3)
    rows = torch.arange(50)
    assert ((ours.logit - logits[rows, tokens]).abs() <= ours.logit_bound).all()
    assert ((ours.logprob - logprobs[rows, tokens]).abs() <= ours.logprob_bound).all()
    assert ((ours.top_logit - logits.max(-1).values).abs() <= ours.top_bound).all()
    chosen = logits.argmax(-1)
    gaps = ours.top_logit - score(normed, chosen, checkpoint.head, dtype, 3).logit
    assert (gaps <= 2 * ours.top_bound).all()
    # The logits are spread by about 1, of which the bound is a hundred units of rounding.
    assert (ours.logprob_bound < 200 * torch.finfo(dtype).eps).all()


def test_a_head_that_is_taken_in_pieces_is_the_same_head() -> None:
    """More tokens than fit one piece; the largest may be in any."""
    chance = torch.Generator().manual_seed(1)
    head = torch.randn(20000, 16, generator=chance)
    states = torch.randn(30, 16, generator=chance)
    tokens = torch.randint(20000, (30,), generator=chance)
    ours = score(states, tokens, head, torch.float32, 3)
    logits = states.double() @ head.double().T
    assert torch.equal(ours.top, logits.argmax(-1))
    expected = logits.log_softmax(-1)[torch.arange(30), tokens]
    torch.testing.assert_close(ours.logprob, expected, atol=1e-5, rtol=0)


def test_states_that_are_not_finite_agree_with_nothing() -> None:
    """A NaN is never within a bound."""
    states = torch.full((1, 4), torch.nan)
    ours = score(states, torch.tensor([1]), torch.eye(4), torch.float32, 3)
    assert not (ours.logprob <= 0).any()
    assert not (ours.logit <= ours.top_logit).any()


def test_kimi_keeps_its_language_model_apart(model: Path, tmp_path: Path) -> None:
    """Prefix, nested config, and the token that stands for an image."""
    plain = open_checkpoint(model)
    kimi = open_checkpoint(build_tiny_kimi(tmp_path / "kimi", model))
    assert torch.equal(kimi.head, plain.head)
    assert torch.equal(kimi.norm, plain.norm)
    assert (kimi.eps, kimi.num_layers, kimi.placeholders) == (1e-6, 8, {1000})
    assert (kimi.vocab_size, kimi.hidden_size) == (1024, 128)


def test_only_the_shards_with_norm_and_head_are_opened(copy: Path) -> None:
    """The index names them; the others need not even be there."""
    whole = open_checkpoint(copy)
    weights = load_file(copy / "model.safetensors")
    names = ["model.norm.weight", "lm_head.weight"]
    for number, name in enumerate(names):
        save_file({name: weights[name]}, copy / f"part-{number}.safetensors")
    places = dict.fromkeys(weights, "gone.safetensors")
    places |= {name: f"part-{number}.safetensors" for number, name in enumerate(names)}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (copy / "model.safetensors").unlink()
    sharded = open_checkpoint(copy)
    assert torch.equal(sharded.head, weights["lm_head.weight"])
    assert torch.equal(sharded.norm, weights["model.norm.weight"])
    del whole


def test_tied_embeddings_are_the_head(copy: Path) -> None:
    """Also where the file has an lm_head, as some that were saved by transformers do."""
    configure(copy, tie_word_embeddings=True)
    embeddings = load_file(copy / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(open_checkpoint(copy).head, embeddings)


def test_rows_beyond_the_vocabulary_are_no_tokens(copy: Path) -> None:
    """A head may be padded."""
    configure(copy, vocab_size=1000)
    assert open_checkpoint(copy).vocab_size == 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": None}, "config.json has rms_norm_eps None, expected a number"),
        ({"vocab_size": "many"}, "config.json has vocab_size 'many'"),
        ({"final_logit_softcapping": 30.0}, "config.json has final_logit_softcapping"),
    ],
)
def test_a_config_that_does_not_say_enough_is_refused(
    copy: Path, changes: dict[str, Any], message: str
) -> None:
    configure(copy, **changes)
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(copy)


def test_a_folder_without_a_head_is_refused_with_what_is_missing(copy: Path) -> None:
    file = copy / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "lm_head.weight": weights["lm_head.weight"].to(torch.int8)}, file)
    with pytest.raises(ConfigError, match=r"lm_head\.weight is I8, which is not supported"):
        open_checkpoint(copy)
    save_file({"model.norm.weight": weights["model.norm.weight"]}, file)
    with pytest.raises(ConfigError, match=r"no lm_head\.weight .* does not say .* tied"):
        open_checkpoint(copy)
    save_file({"other": weights["model.norm.weight"]}, file)
    with pytest.raises(ConfigError, match=r"no final norm .* sought model\.norm\.weight"):
        open_checkpoint(copy)
    file.write_bytes(b"<html>no such file</html>")
    with pytest.raises(ConfigError, match="not a safetensors file"):
        open_checkpoint(copy)
    file.unlink()
    with pytest.raises(ConfigError, match=r"no \*\.safetensors files"):
        open_checkpoint(copy)
    (copy / "config.json").unlink()
    with pytest.raises(ConfigError, match="expected the folder of a checkpoint"):
        open_checkpoint(copy)


def test_a_file_that_was_cut_short_is_refused(copy: Path) -> None:
    file = copy / "model.safetensors"
    weights = load_file(file)
    names = ("model.norm.weight", "lm_head.weight")
    save_file({name: weights[name] for name in names}, file)
    file.write_bytes(file.read_bytes()[:-600])
    with pytest.raises(ConfigError, match="was the file cut short"):
        open_checkpoint(copy)
