"""The demo's second half: samples go through the server into a store, and on to two trainers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from harness.prompts import prompt
from terminal import run_shown

if TYPE_CHECKING:
    from training_files import GivenSample

SAMPLES = 24
FIRST_PROMPT = 100
"""Prompts of lower numbers belong to the first half."""

TRAINED_LAYERS = (1, 3, 5)
FORMATS = ("specforge", "speculators")


def write_samples(path: Path, edges: list[int]) -> list[dict[str, list[int]]]:
    """Write an input file for ``hs-capture extract``, and return its rows.

    ``edges`` are the lengths of the first samples. A mask has zeros first, as a question has, then
    ones, and one more hole.
    """
    rng = random.Random(5)
    lengths = edges + [rng.randint(3, 200) for _ in range(SAMPLES - len(edges))]
    rows = []
    for number, length in enumerate(lengths):
        mask = [int(place >= length // 3 and place != length // 2 + 1) for place in range(length)]
        rows.append({"input_ids": prompt(FIRST_PROMPT + number, length), "loss_mask": mask})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def extract(url: str, folder: Path) -> int:
    """Have every sample of ``samples.jsonl`` captured into the store ``train``."""
    options = {
        "--input": folder / "samples.jsonl",
        "--server": url,
        "--dump-dir": folder / "dump",
        "--output": folder / "train",
    }
    return run_shown(["hs-capture", "extract"], options, folder)


def export(folder: Path, name: str) -> int:
    """Write the store ``train`` as the files of a trainer."""
    options = {
        "--store": folder / "train",
        "--format": name,
        "--layers": ",".join(map(str, TRAINED_LAYERS)),
        "--output": folder / name,
        "--workers": 1,
    }
    return run_shown(["hs-capture", "export"], options, folder)


def collected(store: Path, rows: list[dict[str, list[int]]]) -> list[GivenSample]:
    """Return the rows with their captures in ``store``, as its samples.jsonl pairs them."""
    from hs_capture import open_store
    from training_files import GivenSample

    captures = open_store(store)
    lines = map(json.loads, (store / "samples.jsonl").read_text().splitlines())
    rids = {line["sample"]: line["rid"] for line in lines}
    return [
        GivenSample(row["input_ids"], row["loss_mask"], captures[rids[number]])
        for number, row in enumerate(rows)
    ]


def same(folder: Path, name: str, samples: list[GivenSample]) -> bool:
    """Return whether the files of a format hold the samples; says what differs."""
    import training_files

    compare = {
        "specforge": training_files.specforge_differences,
        "speculators": training_files.speculators_differences,
    }
    differences = list(compare[name](folder / name, samples, TRAINED_LAYERS))
    for difference in differences:
        print(f"     {difference}")
    return not differences
