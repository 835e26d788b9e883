"""A model is served and captured, and every row equals what transformers computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.captures import run_info, status, wait_for
from harness.client import generate, generate_batch, generate_concurrently
from harness.compare import assert_exact
from harness.launching import Launcher
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig

LAYERS = [-1, 0, 3, 6]
ALONE = [1, 16, 17, 70]
BATCH = [3, 40, 1, 33]


def prove(
    serve: Serve,
    launcher: Launcher,
    config: ServerConfig,
    dump_dir: Path,
    layers: Sequence[int] = LAYERS,
    new_tokens: int = 3,
) -> None:
    """Capture embedding, layers and both final states: alone, in a batch, at once, in chunks.

    What was wrapped of SGLang's models is the two functions of this one. ``new_tokens`` are
    generated for each of several prompts, while others of them are still prefilled.
    """
    reference = Reference(config.model)
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": ",".join(map(str, layers)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        **config.environment,
    }
    alone = {f"alone-{length}": prompt(length, length) for length in ALONE}
    batch = {f"batch-{i}": prompt(200 + i, length) for i, length in enumerate(BATCH)}
    at_once = {f"at-once-{i}": prompt(100 + i, 5 + 3 * i) for i in range(6)}
    prompts = {**alone, **batch, **at_once}
    served = ServerConfig(config.model, environment, arguments=config.arguments)
    with serve(launcher, served) as server:
        for rid, tokens in alone.items():
            answer = generate(server.url, tokens, rid, max_new_tokens=2)
            assert answer["output_ids"][0] == reference.next_token(tokens)
        generate_batch(server.url, batch, max_new_tokens=new_tokens)
        generate_concurrently(server.url, at_once.items(), at_once=6, max_new_tokens=new_tokens)
        store = wait_for(dump_dir, prompts)
    assert len(store) == len(prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, layers)
    assert status(dump_dir)["counters"]["hook_errors"] == 0
    wrapped = [name for name in run_info(dump_dir)["wrapped"] if ".srt.models." in name]
    stem = run_info(dump_dir)["model_class"].removesuffix("ForCausalLM")
    assert sorted(name.split(".", 4)[4] for name in wrapped) == [
        f"{stem}ForCausalLM.__init__",
        f"{stem}Model.forward",
    ]
