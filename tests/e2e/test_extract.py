"""From a file of samples to a store, by the command as people run it, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_files import RUN, write_run
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from harness.tiny_model import VOCAB, build_tiny_model
from hs_capture import open_store
from hs_capture.samples import read_samples

LAYERS = [1, 3, 4]
CONTEXT = 4096


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server that captures, with SGLang's prefix cache on, as it is by default."""
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    with serve(zygote, ServerConfig(model, environment)) as server:
        yield server


@pytest.fixture(scope="module")
def plain(serve: Serve, zygote: Zygote, model: Path) -> Iterator[Server]:
    """A server without capture."""
    with serve(zygote, ServerConfig(model)) as server:
        yield server


def extract(
    samples: Path, server: Server, dump_dir: Path, output: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    options = {"--input": samples, "--server": server.url, "--dump-dir": dump_dir}
    return subprocess.run(
        [
            *(sys.executable, "-m", "hs_capture.cli", "extract", "--output", str(output)),
            *(str(text) for pair in options.items() for text in pair),
            *more,
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=output.parent,
    )


def write_samples(path: Path, rows: Sequence[Any]) -> Path:
    """Write rows as JSON lines; a string is a line as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def summary(output: Path) -> dict[str, Any]:
    """Return extract.json."""
    return dict(json.loads((output / "extract.json").read_text()))


def failures(output: Path) -> dict[int, str]:
    """Return what is wrong with each failed sample."""
    lines = (output / "failures.jsonl").read_text().splitlines()
    return {line["sample"]: line["problem"] for line in map(json.loads, lines)}


def left(dump_dir: Path, output: Path) -> list[str]:
    """Return the rids in the dump that an extraction asked for; other tests may leave theirs."""
    keys = {rid.partition("-")[0] for rid in read_samples(output) or ()}
    (key,) = keys
    return [rid for rid in open_store(dump_dir).rids() if rid.startswith(f"{key}-")]


def test_every_sample_is_there_once_with_its_mask(
    server: Server, dump_dir: Path, tmp_path: Path, reference: Reference
) -> None:
    """Rows, ids and masks are those of the input, exact repeats are complete, the dump has none."""
    tokens = [prompt(i, 5 + i) for i in range(36)] + [prompt(3, 8)] * 4
    rows = [
        {"id": f"s{i}", "input_ids": ids, "loss_mask": [0] * 3 + [1] * (len(ids) - 3)}
        for i, ids in enumerate(tokens)
    ]
    output = tmp_path / "out"
    done = extract(write_samples(tmp_path / "in.jsonl", rows), server, dump_dir, output)
    assert done.returncode == 0, done.stderr
    assert "40 of 40 samples are in" in done.stdout
    store, samples = open_store(output), read_samples(output)
    assert samples is not None
    assert sorted(s.number for s in samples.values()) == list(range(40))
    assert sorted(store.rids()) == sorted(samples)
    assert len(store) == 40
    for rid, sample in samples.items():
        ids = tokens[sample.number]
        assert sample.id == f"s{sample.number}"
        assert sample.loss_mask == ((3, len(ids)),)
        assert_exact(store[rid], ids, reference, LAYERS)
    told = summary(output)
    files = list(output.rglob("*.hsc"))
    assert told["state"] == "finished"
    assert (told["samples"], told["captured"], told["failed"]) == (40, 40, 0)
    assert told["tokens"] == sum(map(len, tokens))
    assert told["stored_bytes"] == sum(path.stat().st_size for path in files)
    assert left(dump_dir, output) == []
    again = extract(tmp_path / "in.jsonl", server, dump_dir, output)
    assert again.returncode == 0
    assert sorted(output.rglob("*.hsc")) == sorted(files)
    assert summary(output) | {"seconds": 0, "sessions": 1} == told | {"seconds": 0}


def test_the_store_is_proved_by_the_head_of_its_model(
    server: Server, dump_dir: Path, tmp_path: Path, model: Path
) -> None:
    """By the tokens that extract kept, after the server; and it is not another model's."""
    rows = [{"input_ids": prompt(500 + i, 9)} for i in range(8)]
    output = tmp_path / "out"
    done = extract(write_samples(tmp_path / "in.jsonl", rows), server, dump_dir, output)
    assert done.returncode == 0, done.stderr
    other = build_tiny_model(tmp_path / "other", seed=1)
    for checkpoint, code, agreeing in ((model, 0, "8 of 8"), (other, 3, "0 of 8")):
        place = ["--dump-dir", str(output), "--model", str(checkpoint)]
        done = subprocess.run(
            [sys.executable, "-m", "hs_capture.cli", "verify", *place],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert f"{agreeing} captures say under the head of {checkpoint}" in done.stdout


def test_bad_rows_are_named_and_the_others_are_captured(
    server: Server, dump_dir: Path, tmp_path: Path
) -> None:
    good = prompt(100, 9)
    rows: list[Any] = [
        {"input_ids": good},
        {"input_ids": [5, VOCAB, 7]},
        {"input_ids": [5, -1]},
        {"input_ids": []},
        {"input_ids": [7] * (CONTEXT + 1)},
        {"input_ids": good, "loss_mask": [1] * 8},
        {"input_ids": good, "loss_mask": [2] * 9},
        {"input_ids": "5 6 7"},
        {"text": "hello"},
        {"other": 1},
        "{broken",
        "[1, 2]",
        {"input_ids": prompt(101, 9)},
    ]
    output = tmp_path / "out"
    done = extract(write_samples(tmp_path / "in.jsonl", rows), server, dump_dir, output)
    assert done.returncode == 1
    assert "2 of 13 samples are in" in done.stdout
    told = failures(output)
    assert told[1] == f"token 1 is {VOCAB}, the model has the ids 0 to {VOCAB - 1}"
    assert told[2] == f"token 1 is -1, the model has the ids 0 to {VOCAB - 1}"
    assert told[3] == "the sample is empty: it has no token"
    assert "answered 400" in told[4]
    assert str(CONTEXT) in told[4]
    assert told[5] == "loss_mask has 8 values for 9 tokens"
    assert told[6] == "loss_mask is not a list of 0 and 1"
    assert told[7] == "input_ids is not a list of whole numbers"
    assert told[8] == "holds text, not token ids: give --tokenizer"
    assert told[9] == "has none of input_ids, messages, conversations or text; it has other"
    assert told[10].startswith("not valid JSON")
    assert told[11] == "not a JSON object"
    assert sorted(told) == list(range(1, 12))
    assert "failed: in.jsonl line 4: the sample is empty" in done.stderr
    samples = read_samples(output)
    assert samples is not None
    assert {s.number: s.loss_mask for s in samples.values()} == {0: ((0, 9),), 12: ((0, 9),)}
    assert summary(output)["failed"] == 11
    assert left(dump_dir, output) == []


def test_the_first_failure_stops_when_asked_to(
    server: Server, dump_dir: Path, tmp_path: Path
) -> None:
    rows: list[Any] = [{"input_ids": []}, *({"input_ids": prompt(i, 9)} for i in range(200))]
    samples = write_samples(tmp_path / "in.jsonl", rows)
    done = extract(samples, server, dump_dir, tmp_path / "out", "--fail-fast")
    assert done.returncode == 1
    assert "in.jsonl line 1: the sample is empty: it has no token (--fail-fast)" in done.stderr
    assert summary(tmp_path / "out")["captured"] < 200


def test_shards_are_disjoint_and_have_stores_of_their_own(
    server: Server, dump_dir: Path, tmp_path: Path
) -> None:
    samples = write_samples(tmp_path / "in.jsonl", [{"input_ids": prompt(i, 6)} for i in range(11)])
    numbers = []
    for shard in ("0/3", "1/3", "2/3"):
        output = tmp_path / shard[0]
        assert extract(samples, server, dump_dir, output, "--shard", shard).returncode == 0
        found = read_samples(output)
        assert found is not None
        numbers += [sample.number for sample in found.values()]
    assert sorted(numbers) == list(range(11))
    refused = extract(samples, server, dump_dir, tmp_path / "0", "--shard", "1/3")
    assert refused.returncode == 2
    assert "the shard: 0,3 in the store, 1,3 now" in refused.stderr


def test_a_server_without_capture_is_told_at_once(
    plain: Server, server: Server, dump_dir: Path, tmp_path: Path
) -> None:
    """Whether nobody captures there, or another server does."""
    samples = write_samples(tmp_path / "in.jsonl", [{"input_ids": prompt(1, 9)}])
    done = extract(samples, plain, dump_dir, tmp_path / "out")
    assert done.returncode == 2
    assert f"{plain.url} answered, but its capture does not come to {dump_dir}" in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    done = extract(samples, plain, empty, tmp_path / "out")
    assert done.returncode == 2
    assert f"no server captures into {empty} (found no run)" in done.stderr
    assert list((tmp_path / "out").rglob("*.hsc")) == []


def test_a_dump_directory_of_another_host_is_refused(
    server: Server, dump_dir: Path, tmp_path: Path
) -> None:
    """It is not here, or its run is not live, or it is not the one of this server."""
    samples = write_samples(tmp_path / "in.jsonl", [{"input_ids": prompt(1, 9)}])
    done = extract(samples, server, tmp_path / "none", tmp_path / "out")
    assert done.returncode == 2
    assert "there is no such directory; it has to be the SGLANG_HS_DUMP_DIR" in done.stderr
    write_run(tmp_path / "old")
    done = extract(samples, server, tmp_path / "old", tmp_path / "out")
    assert done.returncode == 2
    assert "no server captures into" in done.stderr


def test_nobody_at_the_address(server: Server, dump_dir: Path, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "in.jsonl", [{"input_ids": prompt(1, 9)}])
    nobody = "http://127.0.0.1:9"
    done = extract(samples, server, dump_dir, tmp_path / "out", "--server", nobody)
    assert done.returncode == 2
    assert f"{nobody}: " in done.stderr


def test_another_model_or_input_is_refused(server: Server, dump_dir: Path, tmp_path: Path) -> None:
    """The message says what differs; the store stays as it was."""
    samples = write_samples(tmp_path / "in.jsonl", [{"input_ids": prompt(1, 9)}])
    other = tmp_path / "other"
    write_run(other, replace(RUN, layer_ids=(1, 2, 5)))
    before = sorted(other.rglob("*"))
    done = extract(samples, server, dump_dir, other)
    assert done.returncode == 2
    assert "belongs to another model or choice of layers" in done.stderr
    assert "layer ids: 1,2,5 in the store, 1,3,4 now" in done.stderr
    assert "hidden size: 4 in the store, 128 now" in done.stderr
    assert sorted(other.rglob("*")) == before
    assert extract(samples, server, dump_dir, tmp_path / "out").returncode == 0
    changed = write_samples(tmp_path / "in.jsonl", [{"input_ids": prompt(2, 9)}] * 2)
    done = extract(changed, server, dump_dir, tmp_path / "out")
    assert done.returncode == 2
    assert "the input's number of rows: 1 in the store, 2 now" in done.stderr
    assert len(open_store(tmp_path / "out")) == 1


def test_a_full_disk_stops_it_and_it_goes_on_later(
    server: Server, dump_dir: Path, tmp_path: Path
) -> None:
    """What is in the store is whole, and nothing is done twice."""
    rows = [{"input_ids": prompt(200 + i, 60)} for i in range(20)]
    samples = write_samples(tmp_path / "in.jsonl", rows)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "hs-test", str(disk)], check=True)
    try:
        output = disk / "out"
        done = extract(samples, server, dump_dir, output, "--concurrency", "2")
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        there = len(open_store(output))
        assert 0 < there < 20
        assert not list(output.rglob("*.part"))
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        done = extract(samples, server, dump_dir, output)
        assert done.returncode == 0, done.stderr
        found = read_samples(output)
        assert found is not None
        assert sorted(sample.number for sample in found.values()) == list(range(20))
        assert sorted(open_store(output).rids()) == sorted(found)
        assert len(open_store(output)) == 20
    finally:
        subprocess.run(["umount", str(disk)], check=True)
