"""What is captured equals what transformers computes with the same weights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.captures import status, wait_for, wait_until
from harness.client import generate, generate_batch, generate_concurrently, get
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

CHUNK = 16
LAYERS = [-1, 1, 3, 5]


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A float32 server that cuts prompts into chunks of 16 tokens and captures all there is."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
    }
    with serve(zygote, ServerConfig(model, environment, chunk=CHUNK)) as server:
        yield server


@pytest.mark.parametrize(
    "length",
    [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 200],
    ids=lambda length: f"{length}-tokens",
)
def test_one_request_is_exact(
    server: Server, dump_dir: Path, reference: Reference, length: int
) -> None:
    """A prompt of one token, of whole chunks, of one more, of many: every row, every tensor."""
    tokens = prompt(length, length)
    rid = f"one-{length}"
    generate(server.url, tokens, rid)
    capture = wait_for(dump_dir, [rid])[rid]
    assert_exact(capture, tokens, reference, LAYERS)
    assert capture.metadata["final"] == ["pre_norm", "post_norm"]


def test_generated_tokens_are_not_captured(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """A capture holds the prompt's rows alone, however many tokens were generated."""
    tokens = prompt(300, 21)
    answer = generate(server.url, tokens, "long-answer", max_new_tokens=30)
    assert len(answer["output_ids"]) == 30
    store = wait_for(dump_dir, ["long-answer"])
    assert len(store.captures("long-answer")) == 1
    assert_exact(store["long-answer"], tokens, reference, LAYERS)


def test_batch_of_eight_lengths_is_exact(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Eight prompts in one request share forwards and chunks, and come apart again."""
    lengths = [3, 40, 1, 16, 17, 90, 7, 33]
    prompts = {f"batch-{n}": prompt(310 + i, n) for i, n in enumerate(lengths)}
    answers = generate_batch(server.url, prompts, max_new_tokens=3)
    assert [answer["meta_info"]["id"] for answer in answers] == list(prompts)
    store = wait_for(dump_dir, prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, LAYERS)


def test_two_hundred_concurrent_requests_keep_their_rows(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """200 requests at once, in shuffled order: each rid has its own prompt's rows, once."""
    rng = random.Random(7)
    prompts = [(f"many-{i}", prompt(400 + i, rng.randint(1, 40))) for i in range(200)]
    rng.shuffle(prompts)
    answers = generate_concurrently(server.url, prompts, at_once=200)
    assert len(answers) == 200
    store = wait_for(dump_dir, [rid for rid, _ in prompts])
    for rid, tokens in prompts:
        assert len(store.captures(rid)) == 1
        assert_exact(store[rid], tokens, reference, LAYERS)


def test_row_ranges_and_layer_subsets(server: Server, dump_dir: Path, reference: Reference) -> None:
    """Any rows of any layers can be had alone, and are the rows of the whole."""
    tokens = prompt(320, 50)
    generate(server.url, tokens, "parts")
    capture = wait_for(dump_dir, ["parts"])["parts"]
    whole = capture.aux_hidden_states()
    part = capture.aux_hidden_states(rows=(15, 34), layers=[5, -1])
    assert part.equal(whole[15:34][:, [3, 0]])
    last = capture.last_hidden_states("pre_norm", rows=slice(49, 50))
    assert last.equal(capture.last_hidden_states("pre_norm")[49:])


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_health_checks_are_not_captured(server: Server, dump_dir: Path, path: str) -> None:
    """SGLang runs a real prefill for a health check; none of it becomes a capture."""
    rids = [f"{path}-{i}" for i in range(3)]
    before = len(wait_for(dump_dir, []))
    for i, rid in enumerate(rids):
        get(f"{server.url}{path}")
        generate(server.url, prompt(330 + 3 * len(path) + i, 5), rid)
    store = wait_for(dump_dir, rids)
    assert sorted(capture.rid for capture in list(store)[before:]) == rids


def test_status_counts_what_is_there(server: Server, dump_dir: Path) -> None:
    """The counters of the status file are the ones of the captures, and nothing went wrong."""
    generate(server.url, prompt(390, 20), "counted")
    store = wait_for(dump_dir, ["counted"])
    captures = list(store)
    seen = wait_until(
        lambda: status(dump_dir), lambda seen: seen["counters"]["captures"] == len(captures)
    )
    assert seen["state"] == "serving"
    assert seen["last_error"] is None
    counters = seen["counters"]
    assert counters["captures"] == len(captures)
    assert counters["complete"] == sum(capture.complete for capture in captures)
    assert counters["tokens"] == sum(capture.num_tokens for capture in captures)
    wrong = ("hook_errors", "writer_errors", "writer_restarts", "rows_dropped", "open_records")
    assert {name: counters[name] for name in wrong} == dict.fromkeys(wrong, 0)
    # six streams of 128 float32 a token, and the token's id
    assert counters["raw_bytes"] >= counters["tokens"] * 6 * 128 * 4
    assert 0 < counters["stored_bytes"] < counters["raw_bytes"]
