"""Servers of two ranks: each request is captured once, by the one rank that has its full rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import parallel
from harness.captures import wait_for
from harness.client import generate, generate_concurrently
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [-1, 1, 3, 5]
REQUESTS = 16
QUIET = ("hook_errors", "writer_errors", "writer_restarts", "rows_dropped", "open_records")


@pytest.fixture
def dump_dir(tmp_path: Path) -> Path:
    """Return a directory for the ranks of one server."""
    return tmp_path / "dump"


def config(model: Path, dump_dir: Path, *arguments: str, **environment: str) -> ServerConfig:
    """Return a server of several ranks that captures."""
    return ServerConfig(
        model,
        {
            **parallel.ENVIRONMENT,
            "SGLANG_HS_DUMP_DIR": str(dump_dir),
            "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
            "SGLANG_HS_FINAL": "both",
            "SGLANG_HS_BUFFER": "16M",
            **environment,
        },
        arguments=arguments,
    )


def assert_each_request_is_captured_once(
    server: Server, dump_dir: Path, reference: Reference, layers: list[int]
) -> None:
    """Send one long prompt, then many at once of 1 to 40 tokens, and compare each capture."""
    rng = random.Random(11)
    prompts = {f"r{i}": prompt(i, rng.randint(1, 40)) for i in range(REQUESTS)}
    alone = prompt(900, 70)
    generate(server.url, alone, "alone", max_new_tokens=4)
    generate_concurrently(server.url, prompts.items(), at_once=8, max_new_tokens=4)
    prompts["alone"] = alone
    store = wait_for(dump_dir, prompts)
    assert sorted(store.rids()) == sorted(prompts)
    assert len(store) == len(prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, layers)


def runs(dump_dir: Path) -> dict[str, dict[str, Any]]:
    """Return run.json of each run in the directory, by the name of its rank."""
    found = [json.loads(path.read_text()) for path in dump_dir.glob("*/run.json")]
    by_rank = {info["rank"]: info for info in found}
    assert len(by_rank) == len(found)
    return by_rank


def counters(dump_dir: Path) -> dict[str, dict[str, int]]:
    """Return the counters of each status file, by the name of its rank."""
    found = [json.loads(path.read_text()) for path in dump_dir.glob("*/status-*.json")]
    return {status["rank"]: status["counters"] for status in found}


def assert_quiet(dump_dir: Path) -> None:
    """Assert that no rank lost anything."""
    for rank, counts in counters(dump_dir).items():
        assert {name: counts[name] for name in QUIET} == dict.fromkeys(QUIET, 0), rank


def test_tensor_parallel_ranks_have_one_writer(
    serve: Serve, zygote: Zygote, model: Path, dump_dir: Path, reference: Reference
) -> None:
    """Both ranks have all rows; the first of them writes."""
    with serve(zygote, config(model, dump_dir, "--tp-size", "2")) as server:
        assert_each_request_is_captured_once(server, dump_dir, reference, LAYERS)
        assert server.log().count("hs-capture 0") == 1
    assert runs(dump_dir)["dp0-pp0-tp0"]["ranks"] == {"tp": 0, "pp": 0, "dp": 0}
    assert len(runs(dump_dir)) == 1
    assert_quiet(dump_dir)


def test_attention_ranks_with_requests_of_their_own_write_their_own(
    serve: Serve, zygote: Zygote, model: Path, dump_dir: Path, reference: Reference
) -> None:
    """Each rank computes attention for its own requests, and runs idle or padded along with others.

    A request's rows are captured by its rank alone, and a store on the directory has them all.
    """
    arguments = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
    served = config(model, dump_dir, *arguments, HS_TEST_STAND_INS="attention_dp")
    with serve(zygote, served) as server:
        assert_each_request_is_captured_once(server, dump_dir, reference, LAYERS)
    found = runs(dump_dir)
    assert {rank: info["ranks"] for rank, info in found.items()} == {
        "dp0-pp0-tp0": {"tp": 0, "pp": 0, "dp": 0},
        "dp1-pp0-tp1": {"tp": 1, "pp": 0, "dp": 1},
    }
    assert_every_rank_captured(dump_dir)
    assert_quiet(dump_dir)


def test_replicas_write_their_own(
    serve: Serve, zygote: Zygote, model: Path, dump_dir: Path, reference: Reference
) -> None:
    """Two whole copies of the model share the requests; a store on the directory has them all."""
    with serve(zygote, config(model, dump_dir, "--dp-size", "2")) as server:
        assert_each_request_is_captured_once(server, dump_dir, reference, LAYERS)
    assert {rank: info["ranks"] for rank, info in runs(dump_dir).items()} == {
        "dp0-pp0-tp0": {"tp": 0, "pp": 0, "dp": 0},
        "dp1-pp0-tp0": {"tp": 0, "pp": 0, "dp": 1},
    }
    assert_every_rank_captured(dump_dir)
    assert_quiet(dump_dir)


def test_the_last_pipeline_stage_writes(
    serve: Serve, zygote: Zygote, model: Path, dump_dir: Path, reference: Reference
) -> None:
    """The last stage holds layers 4 to 7, so it has the outputs of layers 3 to 6."""
    served = config(model, dump_dir, "--pp-size", "2", SGLANG_HS_LAYERS="3,4,6")
    with serve(zygote, served) as server:
        assert_each_request_is_captured_once(server, dump_dir, reference, [3, 4, 6])
    assert {rank: info["ranks"] for rank, info in runs(dump_dir).items()} == {
        "dp0-pp1-tp0": {"tp": 0, "pp": 1, "dp": 0}
    }
    assert_quiet(dump_dir)


def test_layers_of_an_earlier_pipeline_stage_are_refused(
    zygote: Zygote, model: Path, dump_dir: Path, new_log: Callable[[], Path]
) -> None:
    """SGLang would crash at the first request; the server does not start, and one line says why."""
    served = config(model, dump_dir, "--pp-size", "2", SGLANG_HS_LAYERS="2,5")
    server = Server(zygote, served, new_log())
    try:
        exit_code = server.wait_until_ended(90)
    finally:
        server.kill()
    assert exit_code != 0
    (line,) = [line for line in server.log().splitlines() if line.startswith("hs-capture:")]
    assert line.startswith("hs-capture: the server does not start: SGLANG_HS_LAYERS")
    assert line.endswith(
        ": layer 2 is computed by an earlier pipeline stage; the last stage begins with layer 4 "
        "and can capture from 3 on. Choose such layers or serve with --pp-size 1"
    )
    assert not runs(dump_dir)


def assert_every_rank_captured(dump_dir: Path) -> None:
    """Assert that each rank captured some of the requests, and together they captured each."""
    captured = {rank: counts["captures"] for rank, counts in counters(dump_dir).items()}
    assert set(captured) == set(runs(dump_dir))
    assert all(captured.values()), captured
    assert sum(captured.values()) == REQUESTS + 1
