"""Estimates follow from the input and the config alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hs_capture import ConfigError
from hs_capture.cli import main
from hs_capture.extract.estimate import Amount, ModelShape, estimate, measure, read_shape
from hs_capture.extract.source import open_source

KIMI = ModelShape(61, 7168, "bfloat16")


def test_the_arithmetic_of_a_kimi_run() -> None:
    """100,000 samples of 2,048 tokens, 57,344 bytes of states a token."""
    amount = Amount(100_000, 204_800_000, 2048, 0)
    found = estimate(amount, KIMI, 4, 32, tokens_per_second=20_000, drain_bytes_per_second=0.5e9)
    assert found.raw_bytes == 204_800_000 * (57_344 + 8)
    assert found.stored_bytes == int(204_800_000 * (57_344 / 1.45 + 8))
    # The server makes 791 MB/s, the drain takes 500: the disk decides, and 291 MB/s pile up.
    assert found.seconds == found.stored_bytes / 0.5e9
    backlog = found.stored_bytes - int(0.5e9 * 10_240)
    assert abs(found.tmpfs_bytes - backlog - found.in_flight_bytes) <= 1
    fast = estimate(amount, KIMI, 4, 32, tokens_per_second=20_000, drain_bytes_per_second=2e9)
    assert fast.seconds == 10_240
    assert fast.tmpfs_bytes == fast.in_flight_bytes == int(64 * 2048 * (57_344 / 1.45 + 8))
    assert estimate(amount, KIMI, 4, 32, tokens_per_second=2e4).tmpfs_bytes == fast.stored_bytes
    assert estimate(amount, KIMI, 4, 32).seconds is None


def test_only_samples_of_the_shard_count(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"input_ids": [1] * length} for length in (3, 0, 5, 9, 2)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert measure(open_source(path), None, (0, 1)) == Amount(4, 19, 9, 1)
    assert measure(open_source(path), None, (1, 2)) == Amount(1, 9, 9, 1)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (
            {"num_hidden_layers": 61, "hidden_size": 7168, "torch_dtype": "bfloat16"},
            KIMI,
        ),
        (
            {"text_config": {"num_hidden_layers": 61, "hidden_size": 7168, "dtype": "bfloat16"}},
            KIMI,
        ),
        ({"num_hidden_layers": 2, "hidden_size": 8}, ModelShape(2, 8, "bfloat16")),
    ],
)
def test_the_shape_comes_from_the_config(
    tmp_path: Path, config: dict[str, object], shape: ModelShape
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path) == read_shape(tmp_path / "config.json") == shape


def test_a_config_that_does_not_say(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file; give the folder of the model"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ConfigError, match="'num_hidden_layers' is missing"):
        read_shape(tmp_path)


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"num_hidden_layers": 61, "hidden_size": 7168, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.jsonl").write_text(json.dumps({"input_ids": [1] * 1000}) + "\n{}\n")
    arguments = ["estimate", "--input", str(tmp_path / "a.jsonl"), "--model", str(tmp_path)]
    assert main([*arguments, "--tokens-per-second", "100", "--drain-gb-per-second", "1"]) == 0
    said = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    told = {name: value.strip() for name, value in said.items()}
    assert told["samples"] == "1"
    assert told["bad rows"] == "1"
    assert told["tokens"] == "1,000, the longest sample 1,000"
    assert told["states"] == "4 of 7168 x bfloat16 a token"
    assert told["raw"] == "57.35 MB"
    assert told["stored"] == "39.56 MB expected"
    assert told["time"] == "0:10"


def write_unusable(folder: Path, rows: list[dict[str, object]]) -> list[str]:
    """An input of these rows beside a config; returns the command line."""
    (folder / "config.json").write_text('{"num_hidden_layers": 2, "hidden_size": 8}')
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["estimate", "--input", str(folder / "a.jsonl"), "--model", str(folder)]


def test_an_input_without_a_sample_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reasons are said, as extract says them; one good row is enough for 0."""
    assert main(write_unusable(tmp_path, [{"text": "a"}])) == 1
    printed = capsys.readouterr()
    why = "holds text, not token ids: give --tokenizer"
    assert printed.err == f"bad row: a.jsonl line 1: {why}\n"
    assert printed.out.splitlines()[:2] == ["samples         0", "bad rows        1"]
    assert main(write_unusable(tmp_path, [{"text": "a"}, {"input_ids": [1]}])) == 0
    assert capsys.readouterr().err.count("give --tokenizer") == 1


def test_only_the_first_bad_rows_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write_unusable(tmp_path, [{"text": "a"}] * 25)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "bad row: more"
