"""Real captures from a real server, and what each trainer's own classes make of their export."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.captures import wait_for
from harness.client import generate_concurrently
from harness.fixtures import (
    dump_dir,
    model,
    new_log,
    pytest_runtest_makereport,
    serve,
    zygote,
)
from harness.launching import Zygote
from harness.prompts import prompt
from harness.server import Serve, ServerConfig
from hs_capture import Capture, open_store
from hs_capture.samples import Sample, append_line, runs_of
from trainers.environments import environment

__all__ = [
    "dump_dir",
    "model",
    "new_log",
    "pytest_runtest_makereport",
    "serve",
    "zygote",
]

READERS = Path(__file__).parent / "readers"
CHUNK = 64
LENGTHS = (1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1, 200, *range(20, 120, 8))
MAX_LENGTH = 256


@dataclass(frozen=True)
class Real:
    """Captures of the tiny model by SGLang, a sample each, in the order of the samples.

    ``masks`` are the loss masks and ``generated`` the tokens that SGLang generated first.
    """

    store: Path
    captures: list[Capture]
    masks: list[torch.Tensor]
    generated: list[int]


@pytest.fixture(scope="module")
def real(zygote: Zygote, model: Path, serve: Serve, dump_dir: Path) -> Real:
    """Serve, capture, and write down which capture is which sample."""
    config = ServerConfig(model, {"SGLANG_HS_DUMP_DIR": str(dump_dir)}, chunk=CHUNK)
    prompts = {f"sample-{n}": prompt(n, length) for n, length in enumerate(LENGTHS)}
    with serve(zygote, config) as server:
        answers = generate_concurrently(server.url, prompts.items(), 4)
        wait_for(dump_dir, prompts)
    rng = random.Random(7)
    masks = [torch.tensor([rng.randint(0, 1) for _ in tokens]) for tokens in prompts.values()]
    lines = [
        append_line(Sample(n, f"conversation-{n}", rid, runs_of(masks[n].numpy())))
        for n, rid in enumerate(prompts)
    ]
    (dump_dir / "samples.jsonl").write_bytes(b"".join(lines))
    store = open_store(dump_dir)
    generated = [int(answers[rid]["output_ids"][0]) for rid in prompts]
    return Real(dump_dir, [store[rid] for rid in prompts], masks, generated)


@pytest.fixture(scope="module")
def exported(real: Real, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export in a format with the command line, once, and return the folder."""
    done: dict[str, Path] = {}

    def export(name: str) -> Path:
        if name not in done:
            done[name] = tmp_path_factory.mktemp("export") / name
            command = [Path(sys.executable).parent / "hs-capture", "export", "--format", name]
            places = ["--store", real.store, "--output", done[name], "--workers", "1"]
            subprocess.run([*command, *places], check=True, cwd=real.store)
        return done[name]

    return export


@pytest.fixture(scope="module")
def read(
    exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Run a script in a trainer's environment on an export; return what it saved."""

    def run(script: str, trainer: str, *arguments: object) -> Any:
        answer = tmp_path_factory.mktemp("answer") / "answer.pt"
        settings = {"export": str(exported(trainer)), "max_length": MAX_LENGTH}
        command = [environment(trainer), READERS / script, json.dumps(settings), answer, *arguments]
        offline = {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        # SpecForge's loss has kernels of Triton alone, and Triton without a GPU only interprets.
        offline["TRITON_INTERPRET"] = "1"
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **offline},
            cwd=answer.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return torch.load(answer, weights_only=True)

    return run
