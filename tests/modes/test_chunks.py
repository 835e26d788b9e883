"""Prompts in chunks, many at once: with overlap scheduling and without, mixed with decoding."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.captures import status, wait_for, wait_until
from harness.client import generate, generate_concurrently
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [-1, 1, 3, 5]
CHUNK = 16
REQUESTS = 48
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
def folder(tmp_path_factory: pytest.TempPathFactory, mode: str) -> Path:
    """A folder of this server's own."""
    return tmp_path_factory.mktemp(mode)


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, folder: Path, mode: str) -> Iterator[Server]:
    """A server that cuts prompts into chunks of 16 tokens, and notes each forward."""
    environment = {
        "SGLANG_HS_DUMP_DIR": str(folder / "dump"),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_TAP": str(folder / "tap"),
    }
    config = ServerConfig(model, environment, chunk=CHUNK, arguments=MODES[mode])
    with serve(zygote, config) as server:
        yield server


def test_many_prompts_in_chunks_while_others_decode(
    server: Server, folder: Path, reference: Reference
) -> None:
    """Requests of 1 to 120 tokens and as many answers as fit: each is captured once, and right."""
    rng = random.Random(3)
    prompts = [(f"many-{i}", prompt(i, rng.randint(1, 120))) for i in range(REQUESTS)]
    answers = generate_concurrently(server.url, prompts, at_once=24, max_new_tokens=10)
    assert all(len(answer["output_ids"]) == 10 for answer in answers.values())
    store = wait_for(folder / "dump", [rid for rid, _ in prompts])
    assert sum(capture.rid.startswith("many-") for capture in store) == REQUESTS
    for rid, tokens in prompts:
        assert_exact(store[rid], tokens, reference, LAYERS)
    counters = wait_until(
        lambda: status(folder / "dump")["counters"], lambda seen: seen["captures"] == len(store)
    )
    assert {name: counters[name] for name in WRONG} == dict.fromkeys(WRONG, 0)


def test_a_decoding_request_is_no_prompt(
    server: Server, folder: Path, reference: Reference, mode: str
) -> None:
    """While one request decodes, the chunks of another run, in the same forwards where mixed."""
    short, long = prompt(100, 20), prompt(101, 300)
    decoding = threading.Thread(
        target=generate, args=(server.url, short, "short"), kwargs={"max_new_tokens": 120}
    )
    before = len(_forwards(folder))
    decoding.start()
    wait_until(lambda: len(_forwards(folder)), lambda count: count > before + 10)
    generate(server.url, long, "long", max_new_tokens=3)
    decoding.join(60)
    store = wait_for(folder / "dump", ["short", "long"])
    for rid, tokens in (("short", short), ("long", long)):
        assert len(store.captures(rid)) == 1
        assert_exact(store[rid], tokens, reference, LAYERS)
    mixed = [positions for path in _forwards(folder)[before:] if _is_mixed(positions := _of(path))]
    # A chunk of the long prompt, and behind it the one row that the short request decodes.
    assert bool(mixed) == mode.startswith("mixed")


def _forwards(folder: Path) -> list[Path]:
    return sorted((folder / "tap").glob("*.pt"))


def _of(path: Path) -> list[int]:
    forward: dict[str, Any] = torch.load(path)
    return list(forward["positions"].tolist())


def _is_mixed(positions: list[int]) -> bool:
    return (
        len(positions) > 2
        and positions[1] == positions[0] + 1
        and (positions[-1] != positions[-2] + 1)
    )
