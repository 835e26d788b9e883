"""Engines of SGLang on a GPU, one a mode, and what each captured against the first one's.

Prompts of many lengths go in together and one by one; every state of every request is compared by
rid. A mode fails when a capture is missing or incomplete, or when a state differs by more than
rounding in the model's dtype explains.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

ENGINE = {
    "load_format": "dummy",
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "moe_runner_backend": "triton",
    "disable_radix_cache": True,
    "chunked_prefill_size": 2048,
    "max_running_requests": 64,
    "mem_fraction_static": 0.6,
    "disable_flashinfer_autotune": True,
    "random_seed": 1,
    "log_level": "info",
}
LENGTHS = (1, 2, 7, 64, 65, 127, 128, 500, 1024, 1500, 2048, 2049, 5000)
ALLOWED = 0.05
"""Largest relative error a tensor. bfloat16 has 8 bits; another kernel may round otherwise in each
of 27 layers. Wrong rows or layers give errors around 1."""


def prompt(length: int, seed: int) -> list[int]:
    """A prompt that shares no prefix with those of other seeds."""
    return [100 + (seed * 7919 + i * 104729) % 90000 for i in range(length)]


def serve(model: str, layers: str, options: dict[str, Any], dump_dir: str) -> None:
    """Run one engine and send every prompt twice: all together, then one by one."""
    os.environ["SGLANG_HS_DUMP_DIR"] = dump_dir
    os.environ["SGLANG_HS_FINAL"] = "both"
    os.environ["SGLANG_HS_LAYERS"] = layers
    import sglang

    llm = sglang.Engine(model_path=model, **{**ENGINE, **options})
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    together = [prompt(length, i) for i, length in enumerate(LENGTHS)]
    rids = [f"together-{length}" for length in LENGTHS]
    llm.generate(input_ids=together, sampling_params=sampling, rid=rids)
    for i, length in enumerate(LENGTHS):
        alone = prompt(length, 100 + i)
        llm.generate(input_ids=alone, sampling_params=sampling, rid=f"alone-{length}")
    llm.shutdown()


def compare(reference: Path, found: Path) -> dict[str, Any]:
    """Return the largest relative error a stream, and what is missing."""
    import torch

    import hs_capture

    expected, got = hs_capture.open_store(reference), hs_capture.open_store(found)
    errors: dict[str, float] = {}
    missing = []
    for capture in expected:
        if not capture.rid.startswith(("together", "alone")):
            continue
        if capture.rid not in got or not got[capture.rid].complete:
            missing.append(capture.rid)
            continue
        other = got[capture.rid]
        states = [capture.aux_hidden_states(), capture.last_hidden_states("pre_norm")[:, None]]
        states.append(capture.last_hidden_states("post_norm")[:, None])
        others = [other.aux_hidden_states(), other.last_hidden_states("pre_norm")[:, None]]
        others.append(other.last_hidden_states("post_norm")[:, None])
        a, b = torch.cat(states, 1).float(), torch.cat(others, 1).float()
        names = [*(f"layer {layer}" for layer in capture.layer_ids), "pre_norm", "post_norm"]
        for k, name in enumerate(names):
            error = ((a[:, k] - b[:, k]).norm() / a[:, k].norm()).item()
            errors[name] = max(errors.get(name, 0.0), error)
    return {"errors": errors, "missing": missing, "captures": len(got)}


def run_modes(model: str, layers: str, modes: dict[str, dict[str, Any]]) -> bool:
    """Run each of `modes`, engine arguments by name, and print how it differs from the first.

    Returns whether all are right.
    """
    root = Path(tempfile.mkdtemp(prefix="hs-gpu-", dir="/dev/shm"))
    first, good = next(iter(modes)).replace(" ", "-"), True
    spawn = multiprocessing.get_context("spawn")
    for mode, options in modes.items():
        folder = root / mode.replace(" ", "-")
        process = spawn.Process(target=serve, args=(model, layers, options, str(folder)))
        process.start()
        process.join(180)
        if process.is_alive():
            process.kill()
        result: dict[str, Any] = {"exit": process.exitcode}
        try:
            result |= compare(root / first, folder)
        except Exception:
            result["error"] = traceback.format_exc(limit=1)
        print(mode, json.dumps(result), flush=True)
        errors = result.get("errors")
        right = errors and max(errors.values()) <= ALLOWED and not result["missing"]
        good = good and bool(right) and result["exit"] == 0
    return good
