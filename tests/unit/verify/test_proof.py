"""`verify --model` weighs captures by saved answers, and says when there is nothing to weigh."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from capture_files import RUN, norm_weight, states, write_capture
from hs_capture import progress
from hs_capture.cli import main
from hs_capture.samples import Sample, append_line
from hs_capture.verify import by_head, examination

Verify = Callable[..., Any]
NewRun = Callable[..., Path]

WIDTH, VOCABULARY, TOKENS = RUN.hidden_size, 1024, 6
NORM = torch.tensor([1.1, 0.8, 0.9, 1.2])
HEAD = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The checkpoint of the run in `capture_files`, as far as it is looked at."""
    path = tmp_path / "model"
    path.mkdir()
    sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": RUN.num_layers, "rms_norm_eps": 1e-6}
    (path / "config.json").write_text(json.dumps(sizes))
    save_file({"model.norm.weight": NORM, "lm_head.weight": HEAD}, path / "model.safetensors")
    return path


@pytest.fixture
def run(new_run: NewRun) -> Path:
    """A run with the norm of that checkpoint, and no captures."""
    return new_run(norm=norm_weight(NORM.tolist()), vocab_size=VOCABULARY, layer_ids=())


def capture(run: Path, sequence: int, **more: Any) -> dict[str, Any]:
    """Write a capture, and return what the engine answered to its prompt."""
    rows = states(TOKENS, seed=sequence)
    rid = f"rid-{sequence}"
    write_capture(run, sequence, rid, {"final.pre_norm": rows}, **more)
    x = torch.from_numpy(np.asarray(rows))
    y = NORM * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    logprobs = (y @ HEAD.T).log_softmax(-1)
    # The token ids that `write_capture` gives it.
    ids = [100 * sequence + place for place in range(TOKENS)]
    told: list[Any] = [[None, ids[0], None]]
    told += [[float(logprobs[i - 1, ids[i]]), ids[i], None] for i in range(1, TOKENS)]
    answer = {"output_ids": [int(logprobs[-1].argmax())]}
    return {**answer, "meta_info": {"id": rid, "input_token_logprobs": told}}


def save(path: Path, *answers: dict[str, Any]) -> str:
    """Write answers as a user would, and return where."""
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return str(path)


def test_agreement_is_counted(run: Path, model: Path, verify: Verify, tmp_path: Path) -> None:
    answers = [capture(run, n) for n in range(3)]
    said = verify("--model", str(model), "--responses", save(tmp_path / "a", *answers))
    assert (said.exit_code, said.said["verdict"]) == (0, "fired")
    head = said.said["head"]
    assert (head["captures"], head["agreeing"], head["first_tokens_equal"]) == (3, 3, 3)
    assert (head["logprobs"], head["logprobs_agreeing"]) == (15, 15)
    assert head["largest_logprob_difference"] < 1e-5
    assert said.check("head")["state"] == "ok"


def test_saved_answers_are_to_the_prompt_of_a_conversation(
    run: Path, model: Path, verify: Verify, tmp_path: Path
) -> None:
    """Four tokens of six are the prompt: the fifth is what the engine said to it."""
    answer = capture(run, 0, prompt_tokens=4)
    told = answer["meta_info"]["input_token_logprobs"][:4]
    rows = torch.from_numpy(np.asarray(states(TOKENS, seed=0)))
    y = NORM * rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    chosen = int((y[3] @ HEAD.T).argmax())
    answer = {"rid": "rid-0", "output_ids": [chosen], "meta_info": {"input_token_logprobs": told}}
    said = verify("--model", str(model), "--responses", save(tmp_path / "a", answer))
    head = said.said["head"]
    assert (said.exit_code, head["first_tokens_equal"], head["logprobs_agreeing"]) == (0, 1, 3)
    answer["output_ids"] = [chosen + 1]
    said = verify("--model", str(model), "--responses", save(tmp_path / "a", answer))
    assert said.exit_code == 3
    assert said.said["head"]["problems"][0]["row"] == 3


def test_a_long_proof_says_how_far_it_is(
    run: Path, model: Path, dump: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """On standard error: what is printed for machines stays one object."""
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    answers = save(tmp_path / "a", *(capture(run, n) for n in range(3)))
    place = ["--dump-dir", str(dump), "--model", str(model)]
    assert main(["verify", *place, "--responses", answers, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"hs-capture verify: {number} captures {done}"
        for done in ("read", "compared")
        for number in (1, 2, 3)
    ]
    assert json.loads(said.out)["verdict"] == "fired"


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_ends_a_proof_in_one_line(
    run: Path, model: Path, dump: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(by_head, "prove", interrupted)
    answers = save(tmp_path / "a", capture(run, 0))
    place = ["--dump-dir", str(dump), "--model", str(model)]
    assert main(["verify", *place, "--responses", answers]) == 130
    assert capsys.readouterr().err == "\nhs-capture verify: interrupted\n"


def test_ctrl_c_ends_the_reading_of_all_captures_in_one_line(
    run: Path, dump: Path, monkeypatch: Any, capsys: Any
) -> None:
    capture(run, 0)
    monkeypatch.setattr(examination, "examine", interrupted)
    assert main(["verify", "--dump-dir", str(dump), "--all"]) == 130
    assert capsys.readouterr().err == "\nhs-capture verify: interrupted\n"


def test_a_contradiction_names_row_and_numbers(
    run: Path, model: Path, verify: Verify, tmp_path: Path
) -> None:
    good, bad = capture(run, 0), capture(run, 1)
    bad["meta_info"]["input_token_logprobs"][3][0] -= 0.01
    said = verify("--model", str(model), "--responses", save(tmp_path / "a", good, bad))
    assert (said.exit_code, said.said["verdict"]) == (3, "contradicted")
    (problem,) = said.said["head"]["problems"]
    assert (problem["rid"], problem["row"], problem["token"]) == ("rid-1", 2, 103)
    assert problem["difference"] == pytest.approx(0.01, abs=1e-5)
    assert [check["state"] for check in said.checks("head")] == ["fail", "fail"]


def test_an_answer_to_another_prompt_is_a_contradiction(
    run: Path, model: Path, verify: Verify, tmp_path: Path
) -> None:
    answer = capture(run, 0)
    answer["meta_info"]["input_token_logprobs"][2][1] = 60
    said = verify("--model", str(model), "--responses", save(tmp_path / "a", answer))
    assert said.exit_code == 3
    assert "place 2 of the prompt holds token 2, in the engine's answer token 60" in str(said.said)


def test_near_ties_are_no_contradiction_and_others_are(
    run: Path, model: Path, verify: Verify, tmp_path: Path
) -> None:
    answer = {"rid": "rid-0", "output_ids": capture(run, 0)["output_ids"]}
    chosen = answer["output_ids"][0]
    twin = (chosen + 1) % VOCABULARY
    head = HEAD.clone()
    head[twin] = head[chosen] * (1 + 1e-7)
    save_file({"model.norm.weight": NORM, "lm_head.weight": head}, model / "model.safetensors")
    for token, code in ((chosen, 0), (twin, 0), ((chosen + 2) % VOCABULARY, 3)):
        answer["output_ids"] = [token]
        said = verify("--model", str(model), "--responses", save(tmp_path / "a", answer))
        assert said.exit_code == code


def test_the_store_itself_may_hold_the_answers(
    run: Path, model: Path, verify: Verify, dump: Path
) -> None:
    token = capture(run, 0)["output_ids"][0]
    (dump / "samples.jsonl").write_bytes(append_line(Sample(0, "a", "rid-0", (), token)))
    said = verify("--model", str(model))
    assert (said.exit_code, said.said["head"]["first_tokens"]) == (0, 1)
    (dump / "samples.jsonl").write_bytes(append_line(Sample(0, "a", "rid-0", (), token ^ 1)))
    assert verify("--model", str(model)).exit_code == 3


def test_another_checkpoint_shows_in_its_norm(
    run: Path, model: Path, verify: Verify, tmp_path: Path
) -> None:
    answers = save(tmp_path / "a", capture(run, 0))
    tensors = {"model.norm.weight": NORM + 0.01, "lm_head.weight": HEAD}
    save_file(tensors, model / "model.safetensors")
    said = verify("--model", str(model), "--responses", answers)
    assert said.exit_code == 3
    assert said.said["head"]["problems"][0]["text"] == (
        "run run-a: the final norm that it was served with is not that of the checkpoint"
    )


def test_rows_that_are_missing_are_not_asked_for(
    run: Path, model: Path, verify: Verify, tmp_path: Path
) -> None:
    answer = capture(run, 0, missing=[(0, 3)], reason="prefix_cache")
    said = verify("--model", str(model), "--responses", save(tmp_path / "a", answer))
    assert (said.exit_code, said.said["head"]["logprobs"]) == (0, 2)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"lora": "adapter"}, "1 with a LoRA adapter"),
        ({"weights_version": 2}, "1 of weights that were changed after the server's start"),
    ],
)
def test_without_anything_to_compare_there_is_no_verdict(
    run: Path, model: Path, dump: Path, tmp_path: Path, capsys: Any, more: Any, why: str
) -> None:
    answers = save(tmp_path / "a", capture(run, 0, **more))
    place = ["--dump-dir", str(dump), "--model", str(model)]
    assert main(["verify", *place, "--responses", answers]) == 4
    assert why in capsys.readouterr().err
    assert main(["verify", *place, "--responses", save(tmp_path / "b", {"rid": "x"})]) == 4
    assert "1 not in " in capsys.readouterr().err
    assert main(["verify", *place]) == 4
    assert "give --server or --responses" in capsys.readouterr().err
    assert main(["verify", *place, "--responses", save(tmp_path / "c", {"text": "x"})]) == 4
    assert "c: line 1: no rid" in capsys.readouterr().err


def test_answers_without_a_model_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", "--server", "http://127.0.0.1:30000"])
    assert caught.value.code == 4
    assert "--server and --responses need --model" in capsys.readouterr().err
