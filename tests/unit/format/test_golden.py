"""Files of a released version are read for ever, by this package and as the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hs_capture import open_store
from hs_capture.format.container import ContainerReader
from hs_capture.format.index import read_index
from hs_capture.format.run import RunInfo

TESTS = Path(__file__).parents[2]
V1 = TESTS / "fixtures" / "v1"
EXPECTED: dict[str, dict[str, Any]] = json.loads((V1 / "expected.json").read_text())


@pytest.mark.parametrize("file", EXPECTED)
def test_a_version_1_file_gives_the_bytes_it_was_written_with(file: str) -> None:
    expected = EXPECTED[file]
    with ContainerReader(V1 / file) as reader:
        reader.check()
        assert reader.metadata == expected["metadata"]
        assert list(reader.streams) == list(expected["streams"])
        for name, stream in expected["streams"].items():
            assert reader.streams[name].dtype == stream["dtype"]
            assert list(reader.streams[name].shape) == stream["shape"]
            covered = [f"{start}:{stop}" for start, stop in reader.covered(name)]
            assert covered == list(stream["rows"])
            for rows, bits in stream["rows"].items():
                start, stop = map(int, rows.split(":"))
                assert reader.read(name, start, stop).tobytes().hex() == bits


def test_version_1_files_hold_raw_and_compressed_planes_of_every_dtype() -> None:
    with ContainerReader(V1 / "dtypes.hsc") as reader:
        assert len(reader.streams) == 17
        compressed = {
            name
            for name, stream in reader.streams.items()
            for block in stream.blocks
            if len(set(block.lengths)) > 1
        }
    assert {"bfloat16", "float16", "float32", "float64", "int64", "uint32"} <= compressed


@pytest.mark.parametrize("file", EXPECTED)
def test_the_reader_printed_in_the_specification_reads_them_too(file: str) -> None:
    page = (TESTS.parent / "docs" / "format.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15 + 1
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(V1 / file)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, _, bits = line.split()
        found[name] = found.get(name, "") + bits
    streams = EXPECTED[file]["streams"]
    assert found == {name: "".join(stream["rows"].values()) for name, stream in streams.items()}


def test_a_version_1_run_is_read_as_a_store() -> None:
    store = open_store(V1 / "run")
    assert store.rids() == ["whole", "from-the-prefix-cache"]
    whole = EXPECTED["run/000000/000000000-0.hsc"]["streams"]
    capture = store["whole"]
    states = capture.aux_hidden_states()
    assert states.dtype == torch.bfloat16
    for position, layer in enumerate(capture.layer_ids):
        bits = states[:, position].contiguous().view(torch.uint8).numpy().tobytes().hex()
        assert bits == whole[f"layer.{layer}"]["rows"]["0:20"]
    assert capture.last_hidden_states("post_norm").shape == (20, 16)
    assert store["from-the-prefix-cache"].missing == [(0, 12)]


def test_a_version_1_run_keeps_its_index_and_norm() -> None:
    run = RunInfo.read(V1 / "run" / "run.json")
    assert (run.format_version, run.layer_ids, run.final) == (1, (-1, 1, 4), ("pre_norm",))
    assert run.norm is not None
    assert run.norm.weight().shape == (16,)
    entries = read_index(V1 / "run" / "index-tp0.jsonl")
    assert [(entry.rid, entry.rows) for entry in entries] == [
        ("whole", 20),
        ("from-the-prefix-cache", 8),
    ]
