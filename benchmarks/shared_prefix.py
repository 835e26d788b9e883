"""Chats with one system prompt: the prefix cache on, with links, against a key a request (salted).

    PYTHONPATH=tests python benchmarks/shared_prefix.py
    python benchmarks/shared_prefix.py --model CONFIG     # on a GPU: dimensions of this config.json

Real SGLang serves once, with hs-capture and its prefix cache on: the tests' tiny model on a CPU, or
random weights on a GPU.
Each round makes new chats: the turns of a chat come one after the other, each a prompt with all
turns before it (answers are part of the data, as in a training set) and one new token; some chats
run at a time. Both variants are sent the same tokens, in turn first and second. The salted one
gives each request an `extra_key` of its own, with which SGLang computes the whole prompt, as people
do today to have complete captures.

Counted are the rows that were computed, the bytes of the captures' files, the seconds until all was
answered and until all was published, and how many captures are complete. Then some are read, and a
few held against each other, row by row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chat_servers import Ask, on_cpu, on_gpu, vocabulary_of
from figures import machine
from published import published_captures

from hs_capture import Capture, open_store

VARIANTS = ("linked", "salted")
COMPARED = 8
"""Captures a round that are compared between the variants."""
READ = 100
"""Captures a round that are read."""
FIRST_ORDINARY_TOKEN = 2
PUBLISH_SECONDS = 240


@dataclass(frozen=True)
class Round:
    """What one round of one variant took: rows, bytes and seconds."""

    captures: int
    complete: int
    prompt_rows: int
    """Rows of all prompts, whoever computed them."""
    computed_rows: int
    stored_bytes: int
    answered: float
    published: float
    read: float
    """To read the first `READ` captures, once."""


@dataclass(frozen=True)
class Shape:
    """What the chats look like; sizes in tokens."""

    chats: int
    turns: int
    system: int
    turn: int
    at_once: int
    vocabulary: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--system", type=int, default=2000, help="tokens of the system prompt")
    parser.add_argument("--turn", type=int, default=60, help="mean tokens that a turn adds")
    parser.add_argument("--at-once", type=int, default=8, help="chats that run at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="folder with a config.json, to be served on a GPU")
    parser.add_argument("--dump-root", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = (options.chats, options.turns, options.system, options.turn, options.at_once)
    shape = Shape(*sizes, vocabulary_of(options.model))
    rounds: dict[str, list[Round]] = {variant: [] for variant in VARIANTS}
    worst = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=options.dump_root) as dump_root,
    ):
        dump_dir = Path(dump_root) / "dump"
        model = options.model
        with on_gpu(model, dump_dir) if model else on_cpu(Path(folder), dump_dir) as ask:
            for number in range(-1, options.rounds):
                # The first round warms up, and is a tenth of the others.
                size = shape if number >= 0 else Shape(**{**asdict(shape), "chats": 4})
                found = {}
                for variant in VARIANTS[:: 1 if number % 2 else -1]:
                    done, found[variant] = one_round(ask, dump_dir, variant, number, size)
                    if number >= 0:
                        rounds[variant].append(done)
                    print(f"round {number} {variant}: {done}", file=sys.stderr, flush=True)
                worst = max(worst, difference(*(found[variant] for variant in VARIANTS)))
                for file in dump_dir.glob("*/[0-9]*/*.hsc"):
                    file.unlink()
    report = {
        "machine": machine("sglang", "torch", "orjson"),
        "shape": asdict(shape),
        "rounds": {variant: [asdict(r) for r in done] for variant, done in rounds.items()},
        "worst_relative_difference": worst,
    }
    if options.json:
        print(json.dumps(report))
    else:
        print(json.dumps({**report["machine"], **report["shape"]}))
        show(rounds, worst)
    return 0


def one_round(
    ask: Ask, dump_dir: Path, variant: str, number: int, shape: Shape
) -> tuple[Round, dict[str, Capture]]:
    """Run the chats of a round; return what it took, and its captures without the variant's name.

    Both variants of a round are sent the same tokens.
    """
    # A seed and its negative are the same to Python.
    dice = random.Random(f"round {number}")
    chats = list(itertools.islice(prompts_of(dice, shape), shape.chats))
    before = published_captures(dump_dir)
    started = time.perf_counter()
    with ThreadPoolExecutor(shape.at_once) as pool:
        jobs = [
            pool.submit(one_chat, ask, turns, f"{variant}-{number}-{chat}", variant == "salted")
            for chat, turns in enumerate(chats)
        ]
        computed = sum(job.result() for job in jobs)
    answered = time.perf_counter() - started
    count = sum(map(len, chats))
    while published_captures(dump_dir) - before < count:
        if time.perf_counter() - started - answered > PUBLISH_SECONDS:
            raise TimeoutError(
                f"{published_captures(dump_dir) - before} of {count} captures were published"
            )
        time.sleep(0.01)
    published = time.perf_counter() - started
    store = open_store(dump_dir)
    mine = f"{variant}-{number}-"
    captures = {c.rid.removeprefix(mine): c for c in store if c.rid.startswith(mine)}
    entries = [entry for entry in store.entries() if entry.rid.startswith(mine)]
    assert sum(entry.rows for entry in entries) == computed, "rows were lost"
    begun = time.perf_counter()
    for capture in itertools.islice((c for c in captures.values() if c.complete), READ):
        with capture.held_open():
            capture.aux_hidden_states()
            capture.last_hidden_states("pre_norm")
    return Round(
        captures=len(captures),
        complete=sum(capture.complete for capture in captures.values()),
        prompt_rows=sum(len(turn) for turns in chats for turn in turns),
        computed_rows=computed,
        stored_bytes=sum(entry.stored_bytes for entry in entries),
        answered=answered,
        published=published,
        read=time.perf_counter() - begun,
    ), captures


def one_chat(ask: Ask, turns: list[list[int]], rid: str, salted: bool) -> int:
    """Send the turns of a chat in order; return how many rows the server computed for them."""
    computed = 0
    for turn, tokens in enumerate(turns):
        name = f"{rid}-{turn}"
        computed += len(tokens) - ask(tokens, name, name if salted else None)
    return computed


def prompts_of(dice: random.Random, shape: Shape) -> Iterator[list[list[int]]]:
    """Chats without end, each as the prompts of its turns, with one system prompt."""
    system = tokens(dice, shape.system, shape.vocabulary)
    while True:
        said, turns = system, []
        for _ in range(shape.turns):
            more = dice.randint(shape.turn // 2, shape.turn * 3 // 2)
            said = [*said, *tokens(dice, more, shape.vocabulary)]
            turns.append(said)
        yield turns


def tokens(dice: random.Random, count: int, vocabulary: int) -> list[int]:
    return dice.choices(range(FIRST_ORDINARY_TOKEN, vocabulary), k=count)


def difference(linked: dict[str, Capture], salted: dict[str, Capture]) -> float:
    """The largest relative error (2-norm) of a row of some captures against the other variant's."""
    both = sorted(name for name in linked if linked[name].complete and salted[name].complete)
    return max(
        (
            row_error(linked[name], salted[name])
            for name in random.Random(0).sample(both, min(COMPARED, len(both)))
        ),
        default=float("inf"),
    )


def row_error(one: Capture, other: Capture) -> float:
    ours, theirs = (capture.aux_hidden_states().float() for capture in (one, other))
    return float(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max())


def show(rounds: dict[str, list[Round]], worst: float) -> None:
    """Print medians over the rounds, and the spread of what is measured."""

    def median(variant: str, name: str) -> float:
        return statistics.median(getattr(r, name) for r in rounds[variant])

    def told(variant: str, name: str) -> str:
        values: list[Any] = [getattr(r, name) for r in rounds[variant]]
        if name in ("answered", "published", "read"):
            return f"{median(variant, name):.1f} ({min(values):.1f} to {max(values):.1f})"
        return f"{median(variant, name):,.0f}"

    print("| | linked | salted | salted / linked |\n|---|---|---|---|")
    for name, words in (
        ("captures", "captures"),
        ("complete", "of which complete"),
        ("prompt_rows", "rows of the prompts"),
        ("computed_rows", "rows computed"),
        ("stored_bytes", "bytes stored"),
        ("answered", "seconds until answered"),
        ("published", "seconds until published"),
        ("read", f"seconds to read {READ}"),
    ):
        linked, salted = (median(variant, name) for variant in VARIANTS)
        ratio = f"{salted / linked:.2f}" if linked else ""
        print(f"| {words} | {told('linked', name)} | {told('salted', name)} | {ratio} |")
    print(f"largest relative difference of the captures compared: {worst:.1e}")


if __name__ == "__main__":
    sys.exit(main())
