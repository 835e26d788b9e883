"""Generated tokens on servers of two ranks: captured once, by the rank that has full rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from harness import parallel
from harness.captures import wait_for
from harness.generated import Talk, answers, assert_followed
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig

REQUESTS = 12
QUIET = ("hook_errors", "writer_errors", "writer_restarts", "rows_dropped", "open_records")
RANKS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "tensor": (("--tp-size", "2"), {}),
    "attention-data": (
        ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"),
        {"HS_TEST_STAND_INS": "attention_dp"},
    ),
    "pipeline": (("--pp-size", "2"), {}),
}


@pytest.mark.parametrize("kind", RANKS)
def test_each_answer_is_captured_once_and_whole(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path, reference: Reference, kind: str
) -> None:
    """One long prompt, then many at once, greedy and sampled."""
    arguments, environment = RANKS[kind]
    layers = [3, 4, 6]
    served = ServerConfig(
        model,
        {
            **parallel.ENVIRONMENT,
            "SGLANG_HS_DUMP_DIR": str(tmp_path / "dump"),
            "SGLANG_HS_LAYERS": ",".join(map(str, layers)),
            "SGLANG_HS_PHASES": "prefill,decode",
            "SGLANG_HS_BUFFER": "16M",
            **environment,
        },
        arguments=arguments,
    )
    rng = random.Random(12)
    talks = [
        Talk(
            f"r{i}",
            prompt(i, 70 if i == 0 else rng.randint(1, 40)),
            {"max_new_tokens": (20, 1, 7)[i % 3], "temperature": i % 2, "ignore_eos": True},
        )
        for i in range(REQUESTS)
    ]
    with serve(zygote, served) as server:
        said = answers(server.url, talks[:1], at_once=1)
        said |= answers(server.url, talks[1:], at_once=6)
        store = wait_for(tmp_path / "dump", said)
    assert len(store) == len(talks)
    for talk in talks:
        assert_followed(store[talk.rid], talk.prompt, said[talk.rid], reference, layers)
    for path in (tmp_path / "dump").glob("*/status-*.json"):
        counters = json.loads(path.read_text())["counters"]
        assert {name: counters[name] for name in QUIET} == dict.fromkeys(QUIET, 0), path
