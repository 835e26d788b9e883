"""What one release captures, compared with transformers."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from harness.captures import run_info, status, wait_for, wait_until
from harness.client import generate, generate_batch
from harness.compare import assert_exact, assert_linked, errors
from harness.launching import Spawner
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import ServerConfig, serving
from matrix.overlay import python_path
from matrix.releases import Release

CHUNK = 16
LENGTHS = (1, CHUNK, CHUNK + 1, 70)
BATCH = (3, 40, 1, 16, 33)
CACHED, MORE = 40, 3
TROUBLE = ("hook_errors", "writer_errors", "writer_restarts", "rows_dropped")


@dataclass(frozen=True)
class Outcome:
    """What a release captured.

    Attributes:
        errors: the largest relative error of each stream.
        captures: how many captures were compared.
        rows: how many rows they have together.
        seconds: from the start of the server to its end.
        notes: what the run says about the release.
    """

    errors: dict[str, float]
    captures: int
    rows: int
    seconds: float
    notes: list[str]


def config(release: Release, site: Path, model: Path, dump_dir: Path) -> ServerConfig:
    """Return how to serve `model` with the release in the overlay `site`."""
    return ServerConfig(
        model,
        {
            "PYTHONPATH": python_path(release, site),
            "SGLANG_HS_DUMP_DIR": str(dump_dir),
            "SGLANG_HS_LAYERS": ",".join(map(str, release.layers)),
            "SGLANG_HS_FINAL": "both",
            "SGLANG_HS_BUFFER": "16M",
        },
        chunk=CHUNK,
        arguments=release.arguments,
    )


def compare(
    release: Release, site: Path, model: Path, reference: Reference, scratch: Path
) -> Outcome:
    """Serve, capture, and compare every capture with the reference.

    Single requests around the size of a chunk, a batch, and a prompt whose beginning is in the
    prefix cache; the embedding where it can be had, layers, and both final states.

    Raises:
        AssertionError: a capture is wrong, or not what it should be.
    """
    begun = time.monotonic()
    dump_dir = scratch / "dump"
    whole = {f"one-{n}": prompt(n, n) for n in LENGTHS}
    batch = {f"batch-{i}": prompt(300 + i, n) for i, n in enumerate(BATCH)}
    hit = prompt(500, CACHED + MORE)
    with serving(
        Spawner(), config(release, site, model, dump_dir), scratch / "server.log"
    ) as server:
        for rid, tokens in whole.items():
            generate(server.url, tokens, rid, max_new_tokens=3)
        generate_batch(server.url, batch, max_new_tokens=3)
        whole |= {**batch, "first": hit[:CACHED]}
        generate(server.url, hit[:CACHED], "first")
        answer = generate(server.url, hit, "hit")
        store = wait_for(dump_dir, [*whole, "hit"])
        counters = wait_until(
            lambda: status(dump_dir)["counters"], lambda seen: seen.get("captures") == len(store)
        )
    assert {name: counters[name] for name in TROUBLE} == dict.fromkeys(TROUBLE, 0)
    run = run_info(dump_dir)
    assert run["sglang_version"] == release.sglang
    worst: defaultdict[str, float] = defaultdict(float)
    for rid, tokens in whole.items():
        assert_exact(store[rid], tokens, reference, release.layers)
        for name, error in errors(store[rid], tokens, reference).items():
            worst[name] = max(worst[name], error)
    assert answer["meta_info"]["cached_tokens"] == CACHED
    assert_linked(store["hit"], hit, reference, release.layers, [(0, CACHED, "first")])
    for name, error in errors(store["hit"], hit, reference).items():
        worst[name] = max(worst[name], error)
    return Outcome(
        errors=dict(worst),
        captures=len(whole) + 1,
        rows=sum(map(len, whole.values())) + MORE,
        seconds=round(time.monotonic() - begun, 1),
        notes=list(run["notes"]),
    )
