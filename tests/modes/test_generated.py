"""Generated tokens are captured while they are served, however the scheduler does it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.captures import run_info, status, wait_for, wait_until
from harness.generated import Talk, answers, assert_followed
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [-1, 1, 3, 5]
CHUNK = 16
REQUESTS = 32
WRONG = ("hook_errors", "writer_errors", "rows_dropped", "rows_late", "open_records")
MODES = {
    "overlap": (),
    "no-overlap": ("--disable-overlap-schedule",),
    "mixed": ("--enable-mixed-chunk",),
    "mixed-no-overlap": ("--enable-mixed-chunk", "--disable-overlap-schedule"),
}


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """How the server schedules."""
    return str(request.param)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory, mode: str) -> Path:
    """A dump directory of this server's own."""
    return tmp_path_factory.mktemp(mode) / "dump"


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump: Path, mode: str) -> Iterator[Server]:
    """A server that cuts prompts into chunks of 16 tokens, with generated tokens captured."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_PHASES": "prefill,decode",
        "SGLANG_HS_BUFFER": "16M",
    }
    arguments = ("--disable-radix-cache", *MODES[mode])
    with serve(zygote, ServerConfig(model, environment, chunk=CHUNK, arguments=arguments)) as it:
        yield it


def test_many_conversations_at_once(server: Server, dump: Path, reference: Reference) -> None:
    """Greedy and sampled ones, of all lengths: every row is the model's, of the served token."""
    rng = random.Random(5)
    talks = [
        Talk(
            f"many-{i}",
            prompt(i, rng.randint(1, 90)),
            {
                "max_new_tokens": (0, 1, 2, 3, 10, 40, 70)[i % 7],
                "temperature": rng.choice([0, 1.0]),
                "ignore_eos": True,
            },
        )
        for i in range(REQUESTS)
    ]
    said = answers(server.url, talks, at_once=12)
    store = wait_for(dump, said)
    for talk in talks:
        assert len(said[talk.rid]) == talk.sampling["max_new_tokens"]
        (capture,) = store.captures(talk.rid)
        assert_followed(capture, talk.prompt, said[talk.rid], reference, LAYERS)
        assert [c.rid for c in store.find(talk.prompt)] == [talk.rid]
    counters = wait_until(
        lambda: status(dump)["counters"], lambda seen: seen["captures"] == len(store)
    )
    assert {name: counters[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert run_info(dump)["phases"] == ["prefill", "decode"]
