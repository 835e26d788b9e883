"""Requests that SGLang takes back while they decode, and prefills again with what they said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from harness.captures import status, wait_for
from harness.client import generate_concurrently
from harness.compare import assert_exact
from harness.launching import Spawner
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [-1, 1, 3, 5]
# Where end-of-sequence tokens were ignored, SGLang would know beforehand what it has room for.
SAMPLING = {"max_new_tokens": 60, "temperature": 0, "ignore_eos": False}
WRONG = ("hook_errors", "writer_errors", "rows_dropped", "rows_late", "open_records")
CAUSES = {
    # SGLang's own switch for tests takes one request back at every third step.
    "switch": (
        {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "3"},
        ("--disable-radix-cache",),
    ),
    # No room for all that was begun: SGLang counts on answers that end early.
    "tiny-pool": ({}, ("--max-total-tokens", "260", "--schedule-conservativeness", "0.01")),
}


@pytest.fixture(scope="module", params=CAUSES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder named after the cause of retraction."""
    return tmp_path_factory.mktemp("retraction") / str(request.param)


@pytest.fixture(scope="module")
def server(serve: Serve, spawner: Spawner, model: Path, folder: Path) -> Iterator[Server]:
    """A server that retracts, and notes each forward."""
    variables, arguments = CAUSES[folder.name]
    environment = {
        "SGLANG_HS_DUMP_DIR": str(folder / "dump"),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_TAP": str(folder / "tap"),
        **variables,
    }
    with serve(spawner, ServerConfig(model, environment, arguments=arguments)) as server:
        yield server


def test_a_retracted_request_is_captured_once_and_without_its_answer(
    server: Server, folder: Path, reference: Reference
) -> None:
    """The second prefill brings the same rows again, and rows of the answer behind them."""
    prompts = {f"r{i}": prompt(i, 18 + i) for i in range(6)}
    answers = generate_concurrently(
        server.url, prompts.items(), at_once=6, sampling_params=SAMPLING
    )
    assert re.search("#retracted_reqs: [1-9]", server.log())
    store = wait_for(folder / "dump", prompts)
    assert len(store) == len(prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, LAYERS)
    assert any(
        _is_prefilled_again(folder, prompts[rid], answers[rid]["output_ids"]) for rid in prompts
    )
    counters = status(folder / "dump")["counters"]
    assert {name: counters[name] for name in WRONG} == dict.fromkeys(WRONG, 0)


def _is_prefilled_again(folder: Path, tokens: list[int], answer: list[int]) -> bool:
    """Whether a token of the answer ran in one forward with the token before it."""
    whole = list(enumerate([*tokens, *answer]))
    telling = set(pairwise(whole[len(tokens) - 1 :]))
    for path in (folder / "tap").glob("*.pt"):
        forward = torch.load(path)
        rows = zip(forward["positions"].tolist(), forward["input_ids"].tolist(), strict=True)
        if telling & set(pairwise(rows)):
            return True
    return False
