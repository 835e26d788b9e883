"""Generated tokens under decode graphs, against eager decode and against a prefill of the same.

    python tests/gpu/decode_graphs.py --model CONFIG_DIR

Run by hand on a machine with a GPU; no part of `make test`. Each mode is an engine of its own,
with SGLANG_HS_PHASES=prefill,decode. Conversations of many lengths go in one by one, and in groups
that fit the recorded graphs, that need padding, and that are too large for any. Then each captured
conversation is sent again as a prompt. A mode fails when

- a capture is missing or incomplete, or its tokens are not those that the engine answered,
- a row of an answer differs from the same row of the prefill by more than rounding explains,
- a row differs so from that of the eager engine, as far as both said the same,
- decoding ran in graphs where it should not, or did not where it should.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from engines import ENGINE, prompt

MODES: dict[str, dict[str, Any]] = {
    "eager": {"disable_cuda_graph": True},
    "decode graphs": {"cuda_graph_backend_prefill": "disabled", "cuda_graph_max_bs_decode": 8},
    "no overlap": {
        "cuda_graph_backend_prefill": "disabled",
        "cuda_graph_max_bs_decode": 8,
        "disable_overlap_schedule": True,
    },
    "both graphs": {"cuda_graph_backend_prefill": "breakable", "cuda_graph_max_bs_decode": 8},
}
GROUPS = (1, 1, 2, 3, 5, 8, 13)
"""Conversations that are answered at once. The largest graph has 8 rows."""
PROMPTS = (1, 2, 7, 64, 65, 200, 700)
ANSWERS = (1, 2, 3, 17, 40, 90)
ALLOWED = 0.2
"""Largest relative error of a row. Wrong rows have errors around 1. bfloat16 has 8 bits, and where
two experts are nearly as likely rounding may choose the other: eager decode is up to 0.07 from
prefill."""
LAYERS = (-1, 1, 12, 23)
WRITER_SECONDS = 15.0


def serve(model: str, options: dict[str, Any], folder: str) -> None:
    """Run one engine: have every conversation, then send each captured one as a prompt."""
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["SGLANG_HS_DUMP_DIR"] = f"{folder}/dump"
    os.environ["SGLANG_HS_PHASES"] = "prefill,decode"
    os.environ["SGLANG_HS_FINAL"] = "both"
    os.environ["SGLANG_HS_LAYERS"] = ",".join(map(str, LAYERS))
    import sglang

    llm = sglang.Engine(model_path=model, **{**ENGINE, "decode_log_interval": 1, **options})
    said: dict[str, list[int]] = {}
    number = 0
    for group, count in enumerate(GROUPS):
        ids, sampling, rids = [], [], []
        for place in range(count):
            ids.append(prompt(PROMPTS[number % len(PROMPTS)], number))
            length = ANSWERS[number % len(ANSWERS)]
            sampling.append({"max_new_tokens": length, "temperature": 0, "ignore_eos": True})
            rids.append(f"talk-{group}-{place}")
            number += 1
        found = llm.generate(input_ids=ids, sampling_params=sampling, rid=rids)
        for rid, tokens, answer in zip(rids, ids, found, strict=True):
            said[rid] = [*tokens, *answer["output_ids"]]
    once = {"max_new_tokens": 1, "temperature": 0}
    for rid, tokens in said.items():
        llm.generate(input_ids=tokens, sampling_params=once, rid=f"again-{rid}")
    llm.shutdown()
    Path(folder, "said.json").write_text(json.dumps(said))


def states(capture: Any, rows: int) -> Any:
    """The first `rows` rows of all that was captured, float32 [rows, states, H]."""
    import torch

    finals = [
        capture.last_hidden_states(state, (0, rows))[:, None] for state in ("pre_norm", "post_norm")
    ]
    return torch.cat([capture.aux_hidden_states((0, rows)), *finals], 1).float()


def behind(capture: Any) -> Any:
    """The row of the token that ended the answer, as `states`; None where it did not run."""
    import torch

    from hs_capture.format.container import ContainerReader
    from hs_capture.tensors import to_tensor

    if not capture.metadata["rows_behind"]:
        return None
    names = [f"layer.{layer}" for layer in LAYERS] + ["final.pre_norm", "final.post_norm"]
    with ContainerReader(capture.file) as reader:
        rows = [reader.read(name, capture.num_tokens) for name in names]
    dtype = capture.metadata["dtype"]
    return torch.stack([to_tensor(row, dtype) for row in rows], 1).float()


def error(found: Any, expected: Any) -> float:
    """The largest relative error of a state in a row."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def common(one: list[int], other: list[int]) -> int:
    """How many tokens two conversations share at the beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def compare(reference: Path, folder: Path, graphs: bool) -> dict[str, Any]:
    """What is wrong with a mode, and how large the errors are."""
    import hs_capture

    said = json.loads((folder / "said.json").read_text())
    store = hs_capture.open_store(folder / "dump")
    # The writer may finish after the engine is gone.
    deadline = time.monotonic() + WRITER_SECONDS
    while len(store) < 2 * len(said) and time.monotonic() < deadline:
        time.sleep(0.2)
        store = hs_capture.open_store(folder / "dump")
    eager = hs_capture.open_store(reference / "dump")
    wrong: list[str] = []
    to_prefill = to_eager = 0.0
    generated = shared = ended = 0
    for rid, tokens in said.items():
        if rid not in store or f"again-{rid}" not in store:
            wrong.append(f"{rid}: not captured")
            continue
        capture = store[rid]
        if not capture.complete or capture.input_ids.tolist() != tokens[:-1]:
            wrong.append(f"{rid}: {capture}")
            continue
        rows = capture.num_tokens
        own = states(capture, rows)
        again = states(store[f"again-{rid}"], len(tokens))
        to_prefill = max(to_prefill, error(own, again[:rows]))
        last = behind(capture)
        if last is not None:
            to_prefill = max(to_prefill, error(last, again[rows:]))
            ended += 1
        same = common(tokens[:-1], eager[rid].input_ids.tolist())
        to_eager = max(to_eager, error(own[:same], states(eager[rid], same)))
        generated += rows - capture.prompt_tokens
        shared += max(0, same - capture.prompt_tokens)
    log = (folder / "log").read_text(errors="replace")
    ran = {word: log.count(f"cuda graph: {word}") for word in ("True", "False")}
    if bool(ran["True"]) != graphs:
        wrong.append(f"decode passes in graphs: {ran}")
    return {
        "wrong": wrong,
        "captures": len(said),
        "generated rows": generated,
        "of them shared with eager": shared,
        "rows of tokens that ended an answer": ended,
        "error to prefill": to_prefill,
        "error to eager": to_eager,
        "decode passes logged, in graphs or not": ran,
    }


def main() -> int:
    """Run every mode and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hs-gpu-", dir="/dev/shm"))
    results: dict[str, Any] = {}
    spawn = multiprocessing.get_context("spawn")
    for mode in options.modes.split(","):
        folder = root / mode.replace(" ", "-")
        folder.mkdir()
        process = spawn.Process(target=serve, args=(options.model, MODES[mode], str(folder)))
        process.start()
        process.join(240)
        if process.is_alive():
            process.kill()
        result: dict[str, Any] = {"exit": process.exitcode}
        try:
            result |= compare(root / "eager", folder, graphs=mode != "eager")
        except Exception:
            result["error"] = traceback.format_exc(limit=1)
            print((folder / "log").read_text(errors="replace")[-3000:], file=sys.stderr)
        results[mode] = result
        print(mode, json.dumps(result), flush=True)
    good = all(
        result["exit"] == 0
        and "error" not in result
        and not result["wrong"]
        and max(result["error to prefill"], result["error to eager"]) <= ALLOWED
        for result in results.values()
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
