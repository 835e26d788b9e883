"""A conversation is captured while it is served: its prompt, and every token that ran behind it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.captures import run_info, status, wait_for
from harness.client import generate
from harness.compare import TOLERANCE, relative_error
from harness.generated import Talk, answers, assert_chat, assert_followed, chat
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from hs_capture import HiddenStatesDataset

LAYERS = [1, 3, 4]
LOST = ("hook_errors", "writer_errors", "rows_dropped", "rows_late")


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server as SGLang starts it, that captures generated tokens."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_PHASES": "prefill,decode",
        "SGLANG_HS_BUFFER": "16M",
    }
    with serve(zygote, ServerConfig(model, environment)) as server:
        yield server


def test_conversations_are_right_in_every_row(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Greedy and sampled, some at once, in chunks; of each file the end is exactly known."""
    rng = random.Random(2)
    lengths = (0, 1, 2, 20, 21, 22)
    talks = [
        Talk(
            f"talk-{i}",
            prompt(i, rng.randint(1, 40)),
            {"max_new_tokens": length, "temperature": i % 2, "ignore_eos": True},
        )
        for i, length in enumerate(lengths)
    ]
    said = answers(server.url, talks, at_once=3)
    store = wait_for(dump_dir, said)
    for talk in talks:
        assert_followed(store[talk.rid], talk.prompt, said[talk.rid], reference, LAYERS)
    assert run_info(dump_dir)["phases"] == ["prefill", "decode"]
    assert any("Req.update_finish_state" in name for name in run_info(dump_dir)["wrapped"])
    counters = status(dump_dir)["counters"]
    assert {name: counters[name] for name in LOST} == dict.fromkeys(LOST, 0)


def test_turns_that_repeat_the_whole_answer_are_complete(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """SGLang keeps the row of a token that ended an answer: the next turn has it from there."""
    turns = chat(server.url, "repeat", prompt(700, 30))
    store = wait_for(dump_dir, [turn.rid for turn in turns])
    assert_chat(store, turns, reference, LAYERS)
    # Overlap scheduling has run the tokens that answers stopped at, and those of other ends not.
    behind = [store[turn.rid].metadata["rows_behind"] for turn in turns]
    assert behind == [0, 1, 0, 1]
    assert turns[2].cached == len(turns[1].prompt) + len(turns[1].answer)


def test_a_data_set_trains_on_the_answers(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    tokens = prompt(100, 20)
    answer = generate(server.url, tokens, "train", max_new_tokens=9)["output_ids"]
    wait_for(dump_dir, ["train"])
    (item,) = HiddenStatesDataset(dump_dir, final="post_norm", rids="train")
    assert item["input_ids"].tolist() == [*tokens, *answer[:-1]]
    assert item["loss_mask"].tolist() == [0] * 20 + [1] * 8
    states = reference.states([*tokens, *answer[:-1]])
    assert relative_error(item["last_hidden_states"], states.post_norm) <= TOLERANCE
    # What the last row makes most likely is the token that no row is of.
    logits = item["last_hidden_states"][-1] @ reference.head_weight.T
    assert int(logits.argmax()) == answer[-1]


def test_every_turn_of_a_chat_is_complete_with_the_prefix_cache_on(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """A turn computes what is new; the rest it has from the turns before, their answers too."""
    chats = {f"chat-{i}": [*prompt(200, 25), *prompt(201 + i, 9)] for i in range(3)}
    turns: dict[str, tuple[list[int], list[int]]] = {}
    cached: dict[str, int] = {}
    for turn in range(4):
        for name, tokens in chats.items():
            rid = f"{name}-{turn}"
            sampling = {"max_new_tokens": 7 + turn, "temperature": 1, "ignore_eos": True}
            reply = generate(server.url, tokens, rid, sampling_params=sampling)
            answer = list(reply["output_ids"])
            turns[rid] = (tokens, answer)
            cached[rid] = reply["meta_info"]["cached_tokens"]
            chats[name] = [*tokens, *answer, *prompt(300 + 10 * turn, 5 + turn)]
    store = wait_for(dump_dir, turns)
    entries = {entry.rid: entry for entry in store.entries()}
    for rid, (tokens, answer) in turns.items():
        assert_followed(store[rid], tokens, answer, reference, LAYERS)
        assert store[rid].metadata["missing"] == ([[0, cached[rid]]] if cached[rid] else [])
        assert entries[rid].rows == len(tokens) + len(answer) - 1 - cached[rid]
    # All that ran in the turn before is in the cache: its prompt and its answer but for the end.
    for name in chats:
        for turn in range(1, 4):
            before, answer = turns[f"{name}-{turn - 1}"]
            assert cached[f"{name}-{turn}"] == len(before) + len(answer) - 1
