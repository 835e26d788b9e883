"""gpt-oss: attention with sinks, through a sliding window in every other layer.

Of what SGLang has for such attention, its Triton kernels can run without a GPU: in Triton's
interpreter, in float32. All else of the model is what SGLang runs on any CPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from harness import parallel
from harness.captures import run_info, status, wait_for
from harness.client import generate
from harness.compare import TOLERANCE, assert_linked, errors, relative_error
from harness.launching import INTERPRETED, Zygote
from harness.prompts import prompt
from harness.proof import ALONE, LAYERS, prove
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from harness.tiny_families import GPT_OSS, SLIDING_WINDOW, build_tiny_family
from hs_capture import Capture

ATTENTION = ["--attention-backend", "triton"]
NOTICED = 1000 * TOLERANCE


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny gpt-oss."""
    return build_tiny_family(tmp_path_factory.mktemp("model") / "tiny", GPT_OSS)


def test_a_reference_without_window_or_sinks_is_another(gpt_oss: Path, tmp_path: Path) -> None:
    """So what is equal to the reference was computed with both. The first layer has the window."""
    tokens = prompt(max(ALONE), max(ALONE))
    expected = Reference(gpt_oss).states(tokens).layers

    wide = {**GPT_OSS, "sliding_window": GPT_OSS["max_position_embeddings"]}
    seen = Reference(build_tiny_family(tmp_path / "wide", wide)).states(tokens).layers[0]
    assert relative_error(seen[:SLIDING_WINDOW], expected[0][:SLIDING_WINDOW]) <= TOLERANCE
    assert relative_error(seen[SLIDING_WINDOW:], expected[0][SLIDING_WINDOW:]) > NOTICED

    weights = load_file(gpt_oss / "model.safetensors")
    for name, values in weights.items():
        if name.endswith("sinks"):
            values.fill_(-1e4)
    sinkless = tmp_path / "sinkless"
    sinkless.mkdir()
    save_file(weights, sinkless / "model.safetensors", metadata={"format": "pt"})
    (sinkless / "config.json").write_text(json.dumps(GPT_OSS))
    without = Reference(sinkless).states(tokens).layers
    for layer in range(GPT_OSS["num_hidden_layers"]):
        assert relative_error(without[layer], expected[layer]) > NOTICED


def test_every_row_is_exact(
    serve: Serve, interpreting: Zygote, gpt_oss: Path, tmp_path: Path
) -> None:
    """Every row equals transformers, of prompts and chunks longer than the window too."""
    served = ServerConfig(gpt_oss, INTERPRETED, arguments=ATTENTION)
    assert SLIDING_WINDOW < served.chunk < max(ALONE)
    # Decoding takes the interpreter several times as long as all of the prefill.
    prove(serve, interpreting, served, tmp_path / "dump", new_tokens=2)
    assert run_info(tmp_path / "dump")["model_class"] == "GptOssForCausalLM"


def test_the_rows_of_two_ranks_are_whole(
    serve: Serve, interpreting: Zygote, gpt_oss: Path, tmp_path: Path
) -> None:
    """Each rank has half of the heads, and of their sinks."""
    environment = {**INTERPRETED, **parallel.ENVIRONMENT}
    served = ServerConfig(gpt_oss, environment, arguments=[*ATTENTION, "--tp-size", "2"])
    prove(serve, interpreting, served, tmp_path / "dump", new_tokens=1)


def _assert_answered(
    capture: Capture, tokens: list[int], said: list[int], reference: Reference, folder: Path
) -> None:
    """The prompt's rows equal transformers, and the answer's are those that SGLang answered from.

    SGLang decodes with a window that is one token shorter than the one it prefills with (0.5.23, in
    its Triton attention), and so with other states than transformers. The first layer, into which
    nothing else of that comes, equals the reference with such a window; the token that the head
    makes of each final state is the one that was said.
    """
    whole = [*tokens, *said[:-1]]
    assert capture.complete
    prompt_errors = errors(capture, whole, reference, rows=(0, len(tokens)))
    assert max(prompt_errors.values()) <= TOLERANCE
    narrow = Reference(build_tiny_family(folder, {**GPT_OSS, "sliding_window": SLIDING_WINDOW - 1}))
    first = capture.aux_hidden_states((len(tokens), len(whole)), [0])[:, 0]
    assert relative_error(first, narrow.states(whole).layers[0][len(tokens) :]) <= TOLERANCE
    finals = capture.last_hidden_states("post_norm", (len(tokens) - 1, len(whole)))
    assert (finals @ reference.head_weight.T).argmax(-1).tolist() == said


def test_an_answer_is_captured_and_a_cached_prefix_said_to_be_missing(
    serve: Serve, interpreting: Zygote, gpt_oss: Path, tmp_path: Path
) -> None:
    """SGLang has a prefix cache of another kind for such models; all rows behind it are right."""
    dump_dir, reference = tmp_path / "dump", Reference(gpt_oss)
    environment = {
        **INTERPRETED,
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_PHASES": "prefill,decode",
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
    }
    longer = prompt(500, 45)
    shorter = longer[:40]
    with serve(interpreting, ServerConfig(gpt_oss, environment, arguments=ATTENTION)) as server:
        said = generate(server.url, shorter, "shorter", max_new_tokens=6)["output_ids"]
        answer = generate(server.url, longer, "longer")
        assert answer["output_ids"][0] == reference.next_token(longer)
        store = wait_for(dump_dir, ["shorter", "longer"])
    cached = answer["meta_info"]["cached_tokens"]
    assert cached > SLIDING_WINDOW
    _assert_answered(store["shorter"], shorter, said, reference, tmp_path / "narrow")
    # Slots of a sliding window are given back early: they are not followed.
    assert_linked(store["longer"], longer, reference, LAYERS, [], [(0, cached)])
    assert status(dump_dir)["counters"]["hook_errors"] == 0
