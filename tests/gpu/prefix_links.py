"""Linked captures on a GPU, against those of a server without a prefix cache.

    python tests/gpu/prefix_links.py --model CONFIG_DIR

Run by hand on a machine with a GPU; no part of `make test`. Chats with a few system prompts go
through a KV cache that is too small for them, all turns of a round in one batch, with answers and
CUDA graphs for decode. Every row that a capture says it has is compared, by rid, with the row of an
engine that computes every prompt as a whole.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from engines import ENGINE

CACHED = {
    "disable_radix_cache": False,
    "max_total_tokens": 20000,
    "mem_fraction_static": 0.4,
    "cuda_graph_backend_prefill": "disabled",
    "cuda_graph_max_bs_decode": 32,
}
WHOLE = {"disable_radix_cache": True, "disable_cuda_graph": True}
CHATS, TURNS, SYSTEMS = 24, 4, 3
ALLOWED = 0.5
"""Largest relative error of a row. A wrong row has one around 1.4. Where two experts are nearly as
likely, rounding in bfloat16 may choose the other, which changes a row by some hundredths."""


def rounds() -> list[dict[str, list[int]]]:
    """The prompts of each round by rid: one turn of every chat, and requests nobody captures."""
    dice = random.Random(5)
    systems = [dice.choices(range(100, 90000), k=600 + 300 * i) for i in range(SYSTEMS)]
    chats = [list(dice.choice(systems)) for _ in range(CHATS)]
    found = []
    for turn in range(TURNS):
        prompts = {}
        for number, chat in enumerate(chats):
            chat.extend(dice.choices(range(100, 90000), k=dice.randint(10, 150)))
            who = "other" if dice.random() < 0.15 else "wanted"
            prompts[f"{who}-{number}-{turn}"] = list(chat)
        found.append(prompts)
    return found


def serve(model: str, options: dict[str, Any], new_tokens: int, dump_dir: str) -> None:
    """Run one engine and send every round as one batch."""
    os.environ |= {"SGLANG_HS_DUMP_DIR": dump_dir, "SGLANG_HS_LAYERS": "-1,1,12,23"}
    os.environ |= {"SGLANG_HS_RIDS": "wanted-*"}
    import sglang

    llm = sglang.Engine(model_path=model, **{**ENGINE, **options})
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    for prompts in rounds():
        llm.generate(input_ids=list(prompts.values()), rid=list(prompts), sampling_params=sampling)
    llm.shutdown()


def compare(whole: Path, cached: Path) -> dict[str, Any]:
    """Compare all rows that are there; count captures and rows."""
    import hs_capture
    from hs_capture.intervals import subtract

    expected, got = hs_capture.open_store(whole), hs_capture.open_store(cached)
    counts = dict.fromkeys(("captures", "linked", "complete", "rows", "linked_rows"), 0)
    worst = 0.0
    for capture in got:
        reference = expected[capture.rid]
        assert capture.input_ids.equal(reference.input_ids), capture.rid
        sources = capture.metadata["sources"]
        counts["captures"] += 1
        counts["linked"] += bool(sources)
        counts["complete"] += capture.complete
        counts["linked_rows"] += sum(source["stop"] - source["start"] for source in sources)
        for rows in subtract((0, capture.num_tokens), capture.missing):
            counts["rows"] += rows[1] - rows[0]
            ours = capture.aux_hidden_states(rows).float()
            theirs = reference.aux_hidden_states(rows).float()
            error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
            worst = max(worst, error.max().item())
    (status,) = cached.glob("*/status-*.json")
    counters = json.loads(status.read_text())["counters"]
    wrong = {n: counters[n] for n in ("hook_errors", "writer_errors", "rows_dropped")}
    passes = max(1, counters["batches"])
    hooks = counters["hook_microseconds"] / passes
    return {**counts, **wrong, "largest_row_error": worst, "hook_microseconds_a_batch": hooks}


def main() -> int:
    """Run both engines and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", type=json.loads, default={}, help="more engine arguments")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hs-gpu-", dir="/dev/shm"))
    spawn = multiprocessing.get_context("spawn")
    runs = {"whole": ({**WHOLE, **options.engine}, 1), "cached": ({**CACHED, **options.engine}, 6)}
    processes = {}
    for name, (engine, new_tokens) in runs.items():
        arguments = (options.model, engine, new_tokens, str(root / name))
        processes[name] = spawn.Process(target=serve, args=arguments)
        processes[name].start()
        processes[name].join(200)
        if processes[name].is_alive():
            processes[name].kill()
    result = compare(root / "whole", root / "cached")
    result |= {f"exit_{name}": process.exitcode for name, process in processes.items()}
    print(json.dumps(result), flush=True)
    good = result["largest_row_error"] <= ALLOWED and result["linked"] and not result["hook_errors"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
