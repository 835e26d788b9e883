"""What capture costs a real SGLang server on one GPU.

    python benchmarks/overhead.py --model CONFIG_DIR --plugin FOLDER --variants absent,unset,on

Each variant is a SGLang engine of its own, in a process of its own with its own environment; all of
them stay up, and rounds alternate between them, so that a drift of the machine meets all alike. The
model is a configuration with dummy weights of realistic scale. Loads:

    prefill   prompts of 1,024 random tokens, one new token each
    mixed     prompts of 1,024 random tokens, 128 new tokens each, 32 at a time
    shared    prompts that begin with the same 2,048 tokens and have 128 of their own, one new
              token each, 8 at a time; for engines with a prefix cache

Variants: absent (the plugin cannot be found), unset (installed, variable unset), on, decode (on,
with generated tokens too: SGLANG_HS_PHASES=prefill,decode), and two ways people capture today: save
(`.cpu()` and `torch.save` a request inside the forward pass) and json (SGLang's own
`return_hidden_states`, final states only). Prints a table, with medians and spreads, and the
machine and versions it ran on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loads import Load, answer, loads_of, prompts_of
from published import indexes, published_captures, require_whole

HERE = Path(__file__).resolve().parent
CAPTURING = ("on", "decode")
DRAIN_SECONDS = 60.0

ENGINE = {
    "load_format": "dummy",
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "moe_runner_backend": "triton",
    "disable_radix_cache": True,
    "chunked_prefill_size": 8192,
    "max_running_requests": 512,
    "disable_flashinfer_autotune": True,
    "random_seed": 1,
    "log_level": "warning",
}


@dataclass(frozen=True)
class Round:
    """What one round of one variant took, in seconds."""

    answered: float
    published: float
    tokens: int
    gaps: list[float]
    """Seconds between the tokens of a request, for loads with more than one."""
    peak_bytes: int
    """The most device memory that tensors of the engine ever took, weights and KV cache too."""


def environment(variant: str, plugin: str, dump_dir: Path) -> dict[str, str]:
    """The variables of the engine of `variant`; the plugin lies in the folder `plugin`."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_HS_")}
    path = [str(HERE / "gpu_host"), *found.get("PYTHONPATH", "").split(os.pathsep)]
    if variant in ("unset", *CAPTURING):
        path.insert(1, plugin)
    if variant == "decode":
        found["SGLANG_HS_PHASES"] = "prefill,decode"
    if variant in CAPTURING:
        found["SGLANG_HS_DUMP_DIR"] = str(dump_dir)
        found["SGLANG_HS_BUFFER"] = os.environ.get("HS_BENCH_BUFFER", "4G")
        found["SGLANG_HS_WORKERS"] = os.environ.get("HS_BENCH_WORKERS", "8")
    if variant == "save":
        found["HS_BENCH_SAVE"] = str(dump_dir)
    found["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    return found


def serve(
    variant: str, model: str, engine: dict[str, Any], gibibytes: float, dump_dir: Path
) -> None:
    """Run the engine of `variant` and do the rounds that standard input asks for, line by line."""
    import sglang
    import torch

    # SGLang writes to standard output too; the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    started = time.perf_counter()
    options = {**ENGINE, **engine, "model_path": model}
    if "mem_fraction_static" not in options:
        # A share of what is free when this engine starts: others are up already.
        options["mem_fraction_static"] = gibibytes * 2**30 / torch.cuda.mem_get_info()[0]
    options["enable_return_hidden_states"] = variant == "json"
    llm = sglang.Engine(**options)
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    ready = {"seconds": time.perf_counter() - started, "sglang": sglang.__version__}
    print(json.dumps(ready), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        load = Load(**order["load"])
        prompts = prompts_of(load, order["seed"], vocabulary)
        print(json.dumps(asdict(one_round(llm, variant, load, prompts, dump_dir))), file=answers)
    llm.shutdown()


def one_round(
    llm: Any, variant: str, load: Load, prompts: list[list[int]], dump_dir: Path
) -> Round:
    """Answer `prompts` and wait until what was captured is published."""
    before = published_captures(dump_dir) if variant in CAPTURING else 0
    extra = {"return_hidden_states": True} if variant == "json" else {}
    started = time.perf_counter()
    gaps = answer(llm, load, prompts, extra)
    answered = time.perf_counter() - started
    if variant in CAPTURING:
        while published_captures(dump_dir) < before + len(prompts):
            if time.perf_counter() - started > answered + DRAIN_SECONDS:
                raise RuntimeError("captures were not published in time")
            time.sleep(0.005)
    published = time.perf_counter() - started
    if variant in CAPTURING:
        require_whole(indexes(dump_dir))
    clean(dump_dir, variant)
    (state,) = llm.get_server_info()["internal_states"]
    peak_bytes = state["hs_bench_peak_bytes"]
    return Round(answered, published, sum(map(len, prompts)), gaps, peak_bytes)


def clean(dump_dir: Path, variant: str) -> None:
    """Remove capture files, so that every round starts with the same free memory."""
    pattern = "*/[0-9]*/*.hsc" if variant in CAPTURING else "*.pt"
    for file in dump_dir.glob(pattern):
        file.unlink()


@dataclass
class Engine:
    """A running engine process that takes orders."""

    process: subprocess.Popen[str]
    sglang: str = ""
    """Its version."""

    def ask(self, order: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send `order`, if there is one, and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if order is not None:
            print(json.dumps(order), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"an engine ended with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """Wait for the end of the process, not for ever."""
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def engines(options: argparse.Namespace, root: Path) -> Iterator[dict[str, Engine]]:
    """Start one engine a variant, one after the other, and stop all in the end."""
    running: dict[str, Engine] = {}
    try:
        for variant in options.variants.split(","):
            dump_dir = root / variant
            dump_dir.mkdir(mode=0o700)
            command = [sys.executable, __file__, "--serve", variant, "--dump-dir", str(dump_dir)]
            command += ["--model", options.model, "--engine", json.dumps(options.engine)]
            command += ["--gibibytes", str(options.gibibytes)]
            process = subprocess.Popen(
                command,
                env=environment(variant, options.plugin, dump_dir),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            running[variant] = Engine(process)
            ready = running[variant].ask()
            running[variant].sglang = ready["sglang"]
            print(f"{variant}: engine up in {ready['seconds']:.1f} s", file=sys.stderr, flush=True)
        yield running
    finally:
        for engine in running.values():
            assert engine.process.stdin is not None
            engine.process.stdin.close()
        for engine in running.values():
            engine.stop()


def measure(running: dict[str, Engine], load: Load, rounds: int) -> dict[str, list[Round]]:
    """Run `rounds` of `load` on every variant, alternating, after two to warm up."""
    results: dict[str, list[Round]] = {variant: [] for variant in running}
    for number in range(-2, rounds):
        for variant, engine in running.items():
            done = Round(**engine.ask({"load": asdict(load), "seed": number}))
            if number >= 0:
                results[variant].append(done)
            print(
                f"{load.name} round {number} {variant}: {done.tokens / done.answered:,.0f} tokens/s"
                f" answered, {done.tokens / done.published:,.0f} published,"
                f" peak {done.peak_bytes / 2**30:.2f} GiB",
                file=sys.stderr,
                flush=True,
            )
    return results


def summary(results: dict[str, list[Round]], baseline: str) -> dict[str, Any]:
    """Medians and spreads, and each variant against `baseline`, round by round."""
    table = {}
    for variant, rounds in results.items():
        answered = [r.tokens / r.answered for r in rounds]
        published = [r.tokens / r.published for r in rounds]
        base = [r.tokens / r.answered for r in results[baseline]]
        gaps = sorted(gap for r in rounds for gap in r.gaps)
        table[variant] = {
            "answered_tokens_s": statistics.median(answered),
            "answered_spread": [min(answered), max(answered)],
            "published_tokens_s": statistics.median(published),
            "published_spread": [min(published), max(published)],
            "answered_ratio": statistics.median(a / b for a, b in zip(answered, base, strict=True)),
            "published_ratio": statistics.median(
                p / b for p, b in zip(published, base, strict=True)
            ),
            "gap_p50_ms": 1e3 * gaps[len(gaps) // 2] if gaps else None,
            "gap_p99_ms": 1e3 * gaps[len(gaps) * 99 // 100] if gaps else None,
            "peak_gib": max(r.peak_bytes for r in rounds) / 2**30,
        }
    return table


def spread(row: dict[str, Any], until: str) -> str:
    """A rate with the least and the most of its rounds."""
    least, most = row[f"{until}_spread"]
    return f"{row[f'{until}_tokens_s']:,.0f} ({least:,.0f} to {most:,.0f})"


def machine() -> dict[str, Any]:
    """What this ran on."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--variants", default="absent,unset,on")
    parser.add_argument("--loads", default="prefill,mixed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--engine", type=json.loads, default={}, help="more engine arguments")
    parser.add_argument("--gibibytes", type=float, default=40, help="device memory an engine")
    parser.add_argument("--plugin", default="", help="folder with the installed plugin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--dump-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.model, options.engine, options.gibibytes, options.dump_dir)
        return 0
    baseline = options.variants.split(",")[0]
    loads = loads_of(options.prompts)
    root = Path(tempfile.mkdtemp(prefix="hs-bench-", dir="/dev/shm"))
    parameters = {name: str(value) for name, value in vars(options).items() if value}
    report: dict[str, Any] = {"machine": machine(), "parameters": parameters, "loads": {}}
    try:
        with engines(options, root) as running:
            report["machine"]["sglang"] = running[baseline].sglang
            for name in options.loads.split(","):
                results = measure(running, loads[name], options.rounds)
                report["loads"][name] = summary(results, baseline)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(report))
        return 0
    print(json.dumps({**report["machine"], **report["parameters"]}))
    for name, table in report["loads"].items():
        print(
            f"{name}: {'variant':10} {'tokens/s':>28} {'x':>6} {'published':>28} {'x':>6} "
            f"{'peak GiB':>8} gaps ms"
        )
        for variant, row in table.items():
            gaps = f"{row['gap_p50_ms']:.1f} / {row['gap_p99_ms']:.1f}" if row["gap_p50_ms"] else ""
            print(
                f"{name}: {variant:10} {spread(row, 'answered'):>28} {row['answered_ratio']:6.3f} "
                f"{spread(row, 'published'):>28} {row['published_ratio']:6.3f} "
                f"{row['peak_gib']:8.2f} {gaps}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
