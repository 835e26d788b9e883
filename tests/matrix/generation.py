"""What one release captures of generated tokens, compared with transformers."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

from harness.captures import run_info, status, wait_for, wait_until
from harness.generated import Talk, answers, assert_chat, assert_followed, chat
from harness.launching import Spawner
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import serving
from matrix.fidelity import TROUBLE, config
from matrix.releases import Release

TALKS = 20
SCHEDULES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "overlap": ({}, ()),
    "no-overlap": ({}, ("--disable-overlap-schedule",)),
    "mixed": ({}, ("--enable-mixed-chunk",)),
    "retracting": (
        {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "3"},
        ("--disable-radix-cache",),
    ),
}


def compare(
    release: Release, site: Path, model: Path, reference: Reference, scratch: Path
) -> dict[str, int]:
    """Serve conversations, and compare every row of every capture; rows by way of scheduling.

    Raises:
        AssertionError: a capture is wrong, or not what it should be.
    """
    rows = {}
    for name, (variables, arguments) in SCHEDULES.items():
        dump_dir = scratch / name / "dump"
        shutil.rmtree(scratch / name, ignore_errors=True)
        (scratch / name).mkdir(parents=True)
        base = config(release, site, model, dump_dir)
        served = replace(
            base,
            environment={**base.environment, "SGLANG_HS_PHASES": "prefill,decode", **variables},
            arguments=(*base.arguments, *arguments),
        )
        with serving(Spawner(), served, scratch / name / "server.log") as server:
            said = answers(server.url, _talks(), at_once=8)
            cached = "--disable-radix-cache" not in arguments
            turns = chat(server.url, "chat", prompt(900, 30)) if cached else []
            store = wait_for(dump_dir, [*said, *(turn.rid for turn in turns)])
            counters = wait_until(
                lambda dump_dir=dump_dir: status(dump_dir)["counters"],
                lambda seen, store=store: seen.get("captures") == len(store),
            )
        assert {name: counters[name] for name in TROUBLE} == dict.fromkeys(TROUBLE, 0)
        assert run_info(dump_dir)["sglang_version"] == release.sglang
        for talk in _talks():
            (capture,) = store.captures(talk.rid)
            assert_followed(capture, talk.prompt, said[talk.rid], reference, release.layers)
        assert_chat(store, turns, reference, release.layers)
        rows[name] = sum(capture.num_tokens for capture in store)
    return rows


def _talks() -> list[Talk]:
    rng = random.Random(8)
    return [
        Talk(
            f"talk-{i}",
            prompt(700 + i, rng.randint(1, 50)),
            {
                "max_new_tokens": (0, 1, 2, 25, 40)[i % 5],
                "temperature": i % 2,
                # Where they are ignored, SGLang counts on no early end, and retracts nothing.
                "ignore_eos": False,
            },
        )
        for i in range(TALKS)
    ]
