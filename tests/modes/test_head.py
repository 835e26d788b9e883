"""The model's own head tells states that are right from states that are not."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness import planting
from harness.captures import wait_for
from harness.client import generate
from harness.launching import Zygote
from harness.prompts import prompt
from harness.server import Serve, Server, ServerConfig
from harness.tiny_model import VOCAB, build_tiny_model
from hs_capture import open_store
from hs_capture.cli import main

LENGTH = 40
RIDS = [f"served-{n}" for n in range(12)]
# SGLang does not tell the last token of the vocabulary by its id.
TOLD = sum(token != VOCAB - 1 for n in range(len(RIDS)) for token in prompt(n, LENGTH)[1:])


@dataclass(frozen=True)
class Served:
    """A server that has captured `RIDS`, and its answers in two files, whole and the tokens."""

    server: Server
    dump_dir: Path
    responses: Path
    tokens: Path


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def served(
    request: pytest.FixtureRequest,
    serve: Serve,
    zygote: Zygote,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Prompts in chunks of 16, both final states, and logprobs asked for."""
    folder = tmp_path_factory.mktemp("served")
    dump_dir = folder / "dump"
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": "1,6",
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
    }
    with serve(zygote, ServerConfig(model, environment, dtype=request.param)) as server:
        answers = [
            generate(server.url, prompt(n, LENGTH), rid, return_logprob=True, logprob_start_len=0)
            for n, rid in enumerate(RIDS)
        ]
        wait_for(dump_dir, RIDS)
        responses, tokens = folder / "responses.jsonl", folder / "tokens.jsonl"
        responses.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
        first = [{"rid": a["meta_info"]["id"], "output_ids": a["output_ids"]} for a in answers]
        tokens.write_text("".join(json.dumps(line) + "\n" for line in first))
        yield Served(server, dump_dir, responses, tokens)


def verify(dump_dir: Path, model: Path, *more: object) -> tuple[int, dict[str, Any]]:
    """Return the exit code of the command, and what it says of the head."""
    command = ["verify", "--json", "--dump-dir", dump_dir, "--model", model, *more]
    # An idle scheduler keeps a core busy, and a second thread would wait for it.
    torch.set_num_threads(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(list(map(str, command)))
    said = json.loads(printed.getvalue())
    assert said["exit_code"] == code
    print(json.dumps(said["head"], indent=1))
    return code, {**said["head"], "verdict": said["verdict"]}


def test_sound_captures_say_what_the_server_says(served: Served, model: Path) -> None:
    """Both final states of every capture agree, and asking leaves no capture behind."""
    before = len(open_store(served.dump_dir))
    code, head = verify(served.dump_dir, model, "--server", served.server.url)
    assert code == 0
    assert (head["captures"], head["agreeing"], head["problems"]) == (12, 12, [])
    assert (head["first_tokens"], head["logprobs"]) == (24, 2 * TOLD)
    # Captures are published in the order of their ends, so this one comes after those of verify.
    generate(served.server.url, prompt(900, 5), "afterwards")
    rids = wait_for(served.dump_dir, ["afterwards"]).rids()
    assert [rid for rid in rids if rid.startswith("hs-capture-verify-")] == []
    assert len(rids) >= before


def test_sound_captures_say_what_was_answered_to_them(served: Served, model: Path) -> None:
    """The answers that came with the captures agree in every row, however they were rounded."""
    code, head = verify(served.dump_dir, model, "--responses", served.responses)
    assert code == 0
    assert (head["captures"], head["agreeing"]) == (12, 12)
    assert head["logprobs_agreeing"] == head["logprobs"] == 2 * TOLD
    code, head = verify(served.dump_dir, model, "--responses", served.tokens)
    assert (code, head["first_tokens"], head["logprobs"]) == (0, 24, 0)


@pytest.mark.parametrize(
    ("witness", "fault"),
    [
        *((w, fault) for w in ("server", "responses") for fault in planting.PLAIN),
        # In half precision a second pass of the server would hide as much.
        ("responses", planting.normed_already),
    ],
)
def test_states_that_are_not_what_they_say_are_named(
    served: Served, model: Path, tmp_path: Path, fault: planting.Fault, witness: str
) -> None:
    """Every capture with the fault is contradicted, with the row and both numbers."""
    wrong = planting.planted(served.dump_dir, tmp_path / "wrong", fault, RIDS)
    where = served.server.url if witness == "server" else served.responses
    code, head = verify(wrong, model, f"--{witness}", where)
    assert (code, head["verdict"]) == (3, "contradicted")
    assert {problem["rid"] for problem in head["problems"]} == set(RIDS)
    assert (head["captures"], head["agreeing"]) == (12, 0)
    first = head["problems"][0]
    assert first["difference"] > first["bound"]
    assert f"row {first['row']}: the engine" in first["text"]


def test_rewriting_alone_is_no_fault(served: Served, model: Path, tmp_path: Path) -> None:
    """What plants the faults leaves sound captures sound, with one final state or both."""
    for fault in (planting.sound, planting.only_pre_norm):
        copy = planting.planted(served.dump_dir, tmp_path / fault.__name__, fault, RIDS)
        code, head = verify(copy, model, "--responses", served.responses)
        assert (code, head["agreeing"]) == (0, 12)


@pytest.mark.parametrize(
    "fault",
    [planting.one_layer_early, planting.shifted, planting.of_another_request],
    ids=lambda fault: fault.__name__,
)
def test_first_tokens_alone_are_enough_for_most(
    served: Served, model: Path, tmp_path: Path, fault: planting.Fault
) -> None:
    """Without logprobs some captures may pass, and the sample does not."""
    wrong = planting.planted(served.dump_dir, tmp_path / "wrong", fault, RIDS)
    code, head = verify(wrong, model, "--responses", served.tokens)
    assert code == 3
    assert head["agreeing"] < 12
    assert head["problems"][0]["logprob"] is None


def test_two_rows_of_a_capture_in_each_others_place(
    served: Served, model: Path, tmp_path: Path
) -> None:
    """Where the answers came with the captures, one wrong row is enough."""
    wrong = planting.planted(
        served.dump_dir, tmp_path / "wrong", planting.two_rows_swapped, RIDS[:2]
    )
    code, head = verify(wrong, model, "--responses", served.responses)
    assert code == 3
    assert [(p["rid"], p["row"]) for p in head["problems"]] == [(RIDS[1], 3), (RIDS[0], 3)]


@pytest.mark.parametrize("same_norm", [False, True], ids=["other-norm", "same-norm"])
def test_another_checkpoint(served: Served, model: Path, tmp_path: Path, same_norm: bool) -> None:
    """Its norm differs from that in run.json; and where it does not, its head says other things."""
    other = build_tiny_model(tmp_path / "other", seed=1)
    if same_norm:
        mine, name = load_file(model / "model.safetensors"), "model.norm.weight"
        weights = load_file(other / "model.safetensors")
        save_file({**weights, name: mine[name]}, other / "model.safetensors")
    code, head = verify(served.dump_dir, other, "--responses", served.responses)
    assert code == 3
    named = {problem["rid"] for problem in head["problems"]}
    assert named == (set(RIDS) if same_norm else {None, *RIDS})
    shutil.rmtree(other)
