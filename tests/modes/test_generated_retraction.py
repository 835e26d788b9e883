"""Answers whose request SGLang takes back, and prefills again with what it had said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.captures import status, wait_for
from harness.generated import Talk, answers, assert_followed
from harness.launching import Spawner
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig

LAYERS = [1, 3, 4]
# Where end-of-sequence tokens were ignored, SGLang would know beforehand what it has room for.
SAMPLING = {"max_new_tokens": 60, "temperature": 1.0, "ignore_eos": False}
WRONG = ("hook_errors", "writer_errors", "rows_dropped", "rows_late", "open_records")
SWITCH = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "3"}
CAUSES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    # SGLang's own switch for tests takes one request back at every third step.
    "switch": (SWITCH, ("--disable-radix-cache",)),
    "switch-no-overlap": (SWITCH, ("--disable-overlap-schedule",)),
    # No room for all that was begun: SGLang counts on answers that end early.
    "tiny-pool": ({}, ("--max-total-tokens", "260", "--schedule-conservativeness", "0.01")),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_retracted_answer_is_captured_once_and_whole(
    serve: Serve, spawner: Spawner, model: Path, tmp_path: Path, reference: Reference, cause: str
) -> None:
    """Rows that were captured before stay, those of later tokens come."""
    variables, arguments = CAUSES[cause]
    environment = {
        "SGLANG_HS_DUMP_DIR": str(tmp_path / "dump"),
        "SGLANG_HS_PHASES": "prefill,decode",
        "SGLANG_HS_BUFFER": "16M",
        **variables,
    }
    talks = [Talk(f"r{i}", prompt(i, 18 + i), SAMPLING) for i in range(6)]
    with serve(spawner, ServerConfig(model, environment, arguments=arguments)) as server:
        said = answers(server.url, talks, at_once=6)
        assert re.search("#retracted_reqs: [1-9]", server.log())
        store = wait_for(tmp_path / "dump", said)
    assert len(store) == len(talks)
    for talk in talks:
        assert_followed(store[talk.rid], talk.prompt, said[talk.rid], reference, LAYERS)
    counters = status(tmp_path / "dump")["counters"]
    assert {name: counters[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
