"""A drafter's config is judged as the SGLang that will serve it would read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_files import RUN, write_run
from hs_capture.cli import main
from hs_capture.layer_ids import release_of, resolve_eagle3, spell_eagle3

LAYERS = 61
NEW, OLD = "0.5.23", "0.5.12.post1"


def judge(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    trained: tuple[int, ...],
    ids: list[int] | None,
    version: str,
    *more: str,
    **config: Any,
) -> tuple[int, dict[str, str]]:
    """Exit code, and the lines by what they are about; "!" before those that differ."""
    run = replace(RUN, layer_ids=trained, num_layers=LAYERS, hidden_size=4, vocab_size=64)
    write_run(folder / "store", run)
    eagle = {} if ids is None else {"eagle_aux_hidden_state_layer_ids": ids}
    content = {
        "hidden_size": 4,
        "vocab_size": 64,
        "torch_dtype": "float32",
        "eagle_config": eagle,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(content))
    place = ["--store", str(folder / "store"), "--draft-config", str(folder / "config.json")]
    code = main(["check-drafter", *place, "--sglang-version", version, *more])
    lines = {}
    for line in capsys.readouterr().out.splitlines():
        word, name, text = line[:9].strip(), line[9:22].strip(), line[22:]
        lines[name] = ("!" if word == "differs" else "") + text
    return code, lines


@pytest.mark.parametrize("version", ["0.5.13", "0.5.14", NEW])
@pytest.mark.parametrize("ids", [[1, 29, 57], [2, 30, 58], None])
def test_both_spellings_of_the_default_layers_match_from_0_5_13_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, ids: list[int] | None
) -> None:
    code, lines = judge(tmp_path, capsys, (1, 29, 57), ids, version)
    assert code == 0
    assert lines["layers"] == (
        f"trained on the output of layers 1, 29, 57, and SGLang {version} would feed the same"
    )


def test_ids_taken_for_outputs_by_the_old_and_for_inputs_by_the_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained on the outputs of 2, 30, 58, and the config says so: only the old SGLang agrees."""
    assert judge(tmp_path / "old", capsys, (2, 30, 58), [2, 30, 58], OLD)[0] == 0
    code, lines = judge(tmp_path / "new", capsys, (2, 30, 58), [2, 30, 58], NEW)
    assert code == 1
    assert lines["layers"] == (
        "!trained on the output of layers 2, 30, 58; SGLang 0.5.23 would feed the output of layers "
        '1, 29, 57; write "eagle_aux_hidden_state_layer_ids": [3, 31, 59]'
    )
    assert "the first id is 2 and not 1" in lines["convention"]


def test_the_embedding_beside_two_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = (-1, 2, 30)
    code, lines = judge(tmp_path / "new", capsys, trained, [-1, 2, 30], NEW)
    assert code == 1
    assert lines["layers"] == (
        "!trained on the outputs of the embedding, layer 2, layer 30; SGLang 0.5.23 would feed the "
        "outputs of layer -2, layer 1, layer 29, of which it cannot capture the outputs of layer "
        '-2 and fails; write "eagle_aux_hidden_state_layer_ids": [0, 3, 31]'
    )
    assert judge(tmp_path / "fixed", capsys, trained, [0, 3, 31], NEW)[0] == 0
    code, lines = judge(tmp_path / "old", capsys, trained, [-1, 2, 30], OLD)
    assert code == 1
    assert "cannot capture the outputs of the embedding and fails" in lines["layers"]
    assert lines["layers"].endswith("upgrade SGLang, or train anew")


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("hidden size", {"target_hidden_size": 8}, "8 in the config, 4 captured"),
        ("dtype", {"torch_dtype": "bfloat16"}, "bfloat16 in the config, float32 captured"),
        ("vocabulary", {"vocab_size": 65}, "65 in the config, 64 captured"),
        ("vocabulary", {"draft_vocab_size": 100}, "draft_vocab_size 100 is above the model's 64"),
        ("count", {"num_aux_hidden_states": 2}, "2 in the config, 3 captured"),
        (
            "layers",
            {"eagle_config": {"use_aux_hidden_state": False}},
            "use_aux_hidden_state is off",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    config: dict[str, Any],
    text: str,
) -> None:
    code, lines = judge(tmp_path, capsys, (1, 29, 57), [1, 29, 57], NEW, **config)
    assert code == 1
    assert lines[name].startswith("!")
    assert text in lines[name]
    assert [other for other, said in lines.items() if said.startswith("!")] == [name]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        ("[", "not valid JSON"),
        ('{"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,2"}}', "expected a list"),
    ],
)
def test_a_config_that_cannot_be_read_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    write_run(tmp_path / "store")
    config = tmp_path / "config.json"
    if content is not None:
        config.write_text(content)
    place = ["--store", str(tmp_path / "store"), "--draft-config", str(config)]
    assert main(["check-drafter", *place]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_release_without_eagle3_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(tmp_path, capsys, (1, 29, 57), [1, 29, 57], "0.5.4.post1")[0] == 2


def test_ids_that_are_advised_mean_the_layers_they_were_made_for() -> None:
    for version in (OLD, NEW):
        release = release_of(version)
        for layers in [(1, 29, 57), (2, 30, 58), (0, 5, 9), (-1, 0, 1), (5,)]:
            ids = spell_eagle3(layers, release, LAYERS)
            assert ids is not None
            assert resolve_eagle3(ids, release, LAYERS) == layers
    # An output of layer 0 alone would be the id 1, and a first id of 1 means the output of layer 1.
    assert spell_eagle3((0,), release_of(NEW), LAYERS) is None


def test_a_drafter_of_some_of_the_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they were exported; what is advised is for them alone."""
    store, some = (-1, 2, 30, 58), ("--layers", "2,30,58")
    code, lines = judge(tmp_path / "right", capsys, store, [3, 31, 59], NEW, *some)
    assert code == 0
    assert lines["layers"].startswith("trained on the output of layers 2, 30, 58, and")
    code, lines = judge(tmp_path / "wrong", capsys, store, [2, 30, 58], NEW, *some)
    assert code == 1
    assert lines["layers"].startswith("!")
    assert lines["layers"].endswith('write "eagle_aux_hidden_state_layer_ids": [3, 31, 59]')
    absent = ("--layers", "2,30,59")
    assert judge(tmp_path / "absent", capsys, store, [2, 30, 58], NEW, *absent) == (2, {})


def test_a_model_with_another_rule_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang takes every id of a Llama's drafter for the output of that layer."""
    write_run(tmp_path / "store", replace(RUN, model_class="LlamaForCausalLM"))
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4}))
    place = ["--store", str(tmp_path / "store"), "--draft-config", str(tmp_path / "config.json")]
    assert main(["check-drafter", *place]) == 2
    assert "the store is of a LlamaForCausalLM" in capsys.readouterr().err


@pytest.mark.parametrize(
    "architecture", ["DeepseekV2ForCausalLM", "KimiK25ForConditionalGeneration", "LlamaForCausalLM"]
)
def test_a_target_model_is_no_drafter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], architecture: str
) -> None:
    """Its config has the right width and vocabulary, so it would match; also the store's own."""
    run = replace(RUN, architecture="KimiK25ForConditionalGeneration")
    write_run(tmp_path / "store", run)
    config = {"architectures": [architecture], "hidden_size": 4, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    place = ["--store", str(tmp_path / "store"), "--draft-config", str(tmp_path)]
    assert main(["check-drafter", *place]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"hs-capture check-drafter: --draft-config: {architecture} is a target model, and no "
        'EAGLE-3 drafter; give the config of the draft model, with "architectures" such as '
        "LlamaForCausalLMEagle3\n"
    )


@pytest.mark.parametrize(
    "architectures", [["LlamaForCausalLMEagle3"], ["Eagle3DeepseekV2ForCausalLM"], [], None, [7]]
)
def test_drafters_and_what_is_not_said_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], architectures: object
) -> None:
    code, lines = judge(
        tmp_path, capsys, (1, 29, 57), [1, 29, 57], NEW, architectures=architectures
    )
    assert (code, "layers" in lines) == (0, True)
