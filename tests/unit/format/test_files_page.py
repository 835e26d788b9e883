"""docs/files.md names exactly the fields that are written and their types; its norm is right."""

from __future__ import annotations

import json
import re
import types
import typing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capture_files import RUN, norm_weight, states, write_run
from capture_server import CaptureServer
from hs_capture.export.ledger import Exported
from hs_capture.export.sidecar import Sidecar
from hs_capture.extract.failures import Failures
from hs_capture.extract.plan import Input, Summary, Target
from hs_capture.format.counters import COUNTERS
from hs_capture.format.index import IndexEntry
from hs_capture.format.record import Record
from hs_capture.format.run import FORMAT_VERSION, NormWeight, Refusal, RunInfo, Status
from hs_capture.norm import apply_norm

PAGE = (Path(__file__).parents[3] / "docs" / "files.md").read_text()
WORDS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def table(heading: str) -> dict[str, str]:
    """Return the fields of the table under a heading, each with its type."""
    section = PAGE.split(f"{heading}\n", 1)[1]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| ", section.split("\n#")[0], re.MULTILINE)
    named = [(name, kind) for names, kind in rows for name in re.findall(r"`(\w+)`", names)]
    assert len(dict(named)) == len(named) > 0
    return dict(named)


def in_words(hint: Any) -> str:
    """Return the JSON type of a field, as the page says it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (choice for choice in inner if choice is not types.NoneType)
        return f"{in_words(kind)} or null"
    if origin is dict:
        return f"object of {in_words(inner[1])}s"
    if origin is tuple and inner[-1] is Ellipsis:
        element = in_words(inner[0])
        return f"array of {element}" + ("" if element.startswith("[") else "s")
    if origin is tuple:
        return f"[{', '.join(map(in_words, inner))}]"
    return WORDS.get(hint, "object")


def written(record: Any) -> list[str]:
    """Return the names of a record's fields."""
    return [field.name for field in fields(record)]


@pytest.mark.parametrize(
    ("heading", "record"),
    [
        ("## run.json", RunInfo),
        ("### norm", NormWeight),
        ("## index-RANK.jsonl", IndexEntry),
        ("## status-RANK.json", Status),
        ("## last-refusal.json", Refusal),
        ("## extract.json", Summary),
        ("### input", Input),
        ("## export.json", Sidecar),
        ("## exported.jsonl", Exported),
    ],
)
def test_the_page_names_the_fields_and_types_of_each_file(
    heading: str, record: type[Record]
) -> None:
    hints = typing.get_type_hints(record)
    assert table(heading) == {name: in_words(hints[name]) for name in written(record)}


def test_the_page_names_the_fields_of_the_target() -> None:
    (cell,) = re.findall(r"^\| `target` \| object or null \| (.*) \|$", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", cell) == written(Target)


def test_the_page_names_the_fields_and_types_of_a_failure(tmp_path: Path) -> None:
    failures = Failures(tmp_path, lambda _: None)
    failures.add(7, "train.jsonl line 8", "it is empty", captured=False)
    line = json.loads(failures.path.read_text())
    assert line == {"sample": 7, "place": "train.jsonl line 8", "problem": "it is empty"}
    assert table("## failures.jsonl") == {name: WORDS[type(value)] for name, value in line.items()}


def test_counters_are_there_before_anything_was_captured(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        server.writer_pid()
    assert server.status().counters == dict.fromkeys(COUNTERS, 0)


def test_the_page_is_of_the_version_that_is_written() -> None:
    assert f"| `format_version` | integer | {FORMAT_VERSION}: version of this page |" in PAGE


def test_the_norm_of_the_page_gives_what_readers_give(tmp_path: Path) -> None:
    norm = norm_weight([1.5, -2.0, 0.25, 3.0], eps=1e-3)
    run_dir = write_run(tmp_path, replace(RUN, norm=norm))
    x = states(6)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    found = names["post_norm"](run_dir / "run.json", x)
    expected = apply_norm(torch.from_numpy(x), norm).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
