"""Servers that capture with their prefix cache on: the tests' tiny model on a CPU, or a GPU's.

Each is asked for one new token after a prompt, by several threads at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

Ask: TypeAlias = "Callable[[list[int], str, str | None], int]"
"""Prefill these tokens under a rid, with a key for the cache or without; returns how many of them
came from the cache."""

GPU_ENGINE = {
    "disable_radix_cache": False,
    "disable_cuda_graph": True,
    "max_total_tokens": 270_000,
    "mem_fraction_static": 0.6,
}


@contextmanager
def on_cpu(folder: Path, dump_dir: Path) -> Iterator[Ask]:
    """Serve the tests' model over HTTP."""
    from harness.client import generate
    from harness.launching import Spawner
    from harness.server import ServerConfig, serving
    from harness.tiny_model import build_tiny_model

    config = ServerConfig(
        build_tiny_model(folder / "model"),
        {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "256M"},
        chunk=2048,
        arguments=("--max-total-tokens", "65536"),
    )
    with serving(Spawner(), config, folder / "server.log") as server:

        def ask(tokens: list[int], rid: str, key: str | None) -> int:
            answer = generate(server.url, tokens, rid, **({"extra_key": key} if key else {}))
            return int(answer["meta_info"]["cached_tokens"])

        yield ask


@contextmanager
def on_gpu(model: str, dump_dir: Path) -> Iterator[Ask]:
    """Serve random weights for the config.json in the folder `model`, in this process.

    hs-capture has to be installed where SGLang is, or in a folder of PYTHONPATH with its start-up
    file.
    """
    os.environ |= {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "4G",
        "SGLANG_HS_WORKERS": "8",
    }
    import sglang
    from overhead import ENGINE
    from sglang.srt.managers.io_struct import GenerateReqInput

    llm = sglang.Engine(model_path=model, **{**ENGINE, **GPU_ENGINE})
    answering = threading.Thread(target=llm.loop.run_forever, daemon=True)
    answering.start()

    async def answer(request: Any) -> Any:
        return await llm.tokenizer_manager.generate_request(request, None).__anext__()

    def ask(tokens: list[int], rid: str, key: str | None) -> int:
        once = {"max_new_tokens": 1, "temperature": 0}
        request = GenerateReqInput(input_ids=tokens, rid=rid, extra_key=key, sampling_params=once)
        found = asyncio.run_coroutine_threadsafe(answer(request), llm.loop).result()
        return int(found["meta_info"]["cached_tokens"])

    try:
        yield ask
    finally:
        llm.loop.call_soon_threadsafe(llm.loop.stop)
        answering.join(10)
        llm.shutdown()


def vocabulary_of(model: str | None) -> int:
    """How many token ids the served model has."""
    if model is None:
        from harness.tiny_model import VOCAB

        return VOCAB
    return int(json.loads(Path(model, "config.json").read_text())["vocab_size"])
