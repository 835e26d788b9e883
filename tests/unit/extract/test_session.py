"""Whole sessions against servers that share a host, are busy for a while, or are not the same.

Real rings, writers and files; of SGLang only the HTTP interface.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from capture_server import ROW_BYTES, SECONDS, CaptureServer, assert_complete
from hs_capture import ConfigError, open_store
from hs_capture.capture.batch import Request
from hs_capture.cli import main
from hs_capture.extract.client import ServerGoneError
from hs_capture.extract.extraction import Effort
from hs_capture.extract.plan import EXTRACT_FILE, Summary
from hs_capture.extract.session import Session
from hs_capture.format.run import NormWeight
from http_stub import Stub
from session_stub import (
    NORM,
    ONE_BY_ONE,
    OTHER_NORM,
    Status,
    Watched,
    answering,
    assert_stored_once,
    extract,
    is_sample,
    samples_of,
    serving,
    write_input,
)


def meeting(mine: threading.Event, others: threading.Event) -> Status:
    """A server that answers for no sample before another one has been asked for one, too."""

    def answer(method: str, rid: str | None) -> int:
        if is_sample(rid):
            mine.set()
            assert others.wait(SECONDS)
        return 200

    return answer


def test_servers_with_dump_directories_of_their_own_share_the_samples(tmp_path: Path) -> None:
    """Each sample once, and its states are those that the server in whose run it is computed."""
    prompts = write_input(tmp_path, 60)
    a, b = tmp_path / "a", tmp_path / "b"
    asked = threading.Event(), threading.Event()
    with (
        serving(a, run_id="run-a", answer=meeting(*asked)) as one,
        serving(b, run_id="run-b", answer=meeting(*asked[::-1])) as other,
    ):
        effort = Effort(concurrency=4)
        summary, error = extract(tmp_path, (one, a), (other, b), effort=effort)
        computed = {"run-a": one.computed, "run-b": other.computed}
    assert (error, summary.captured, summary.failed) == (None, 60, 0)
    store, samples = open_store(tmp_path / "out"), samples_of(tmp_path / "out")
    assert sorted(sample.number for sample in samples.values()) == list(range(60))
    assert sorted(capture.rid for capture in store) == sorted(samples)
    assert [run.run_id for run in store.runs] == ["run-a", "run-b"]
    for capture in store:
        request = computed[capture.path.parents[1].name][capture.rid]
        assert request.input_ids.tolist() == prompts[samples[capture.rid].number]
        assert_complete(capture, request)
    assert list(a.rglob("*.hsc")) == list(b.rglob("*.hsc")) == []


def test_the_summary_adds_up_what_is_in_the_store(tmp_path: Path) -> None:
    """Over two sessions; the second one knows what the first one had captured."""
    prompts = write_input(tmp_path, 7)
    dump, output = tmp_path / "dump", tmp_path / "out"

    def refuse_one(_: str, rid: str | None) -> int:
        return 400 if str(rid).startswith("00000003-") else 200

    with serving(dump, run_id="run-a", answer=refuse_one) as stub:
        first, _ = extract(tmp_path, (stub, dump))
    with serving(dump, run_id="run-b") as stub:
        second, error = extract(tmp_path, (stub, dump))
    assert (first.captured, second.captured, error) == (6, 7, None)
    assert Summary.read(output / EXTRACT_FILE) == second
    entries = list(open_store(output).entries())
    tokens = sum(map(len, prompts))
    # Each row has its token id besides.
    assert second.raw_bytes == sum(entry.raw_bytes for entry in entries) == tokens * ROW_BYTES
    assert second.tokens == sum(entry.num_tokens for entry in entries) == tokens
    files = sum(path.stat().st_size for path in output.rglob("*.hsc"))
    assert second.stored_bytes == sum(entry.stored_bytes for entry in entries) == files
    assert second.raw_bytes - first.raw_bytes == len(prompts[3]) * ROW_BYTES


def test_a_busy_server_is_waited_for_longer_and_longer(tmp_path: Path) -> None:
    """Answers of 503 cost no attempt; the sample is asked for again, and is there once."""
    prompts = write_input(tmp_path, 3)
    busy = iter([503, 503, 503])
    begun: list[str] = []
    times: list[float] = []

    def answer(method: str, rid: str | None) -> int:
        if is_sample(rid):
            begun.append(str(rid))
        if len(begun) >= 2:
            times.append(time.monotonic())
            return next(busy, 200)
        return 200

    dump = tmp_path / "dump"
    with serving(dump, run_id="run-a", answer=answer) as stub:
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=0))
    assert (error, summary.captured, summary.failed) == (None, 3, 0)
    assert stub.log == [
        "GET 200",
        "POST probe-1.0 200",
        "POST 00000000-1.1 200",
        "POST 00000001-1.2 503",
        "GET 503",
        "GET 503",
        "GET 200",
        # What came back is met anew: it may be another server.
        "GET 200",
        "POST probe-1.1 200",
        "POST 00000001-1.3 200",
        "POST 00000002-1.4 200",
    ]
    waits = [later - earlier for earlier, later in pairwise(times[:4])]
    assert all(wait > least for wait, least in zip(waits, (0.4, 0.9, 1.9), strict=True))
    assert_stored_once(tmp_path / "out", prompts, stub.computed)


def test_a_failed_request_is_tried_again_under_a_rid_of_its_own(tmp_path: Path) -> None:
    prompts = write_input(tmp_path, 3)
    failing = {"00000001-1.2": 500, "00000001-1.3": 500}
    dump = tmp_path / "dump"
    with serving(dump, run_id="run-a", answer=lambda _, rid: failing.get(str(rid), 200)) as stub:
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=2))
    assert (error, summary.captured, summary.failed) == (None, 3, 0)
    assert stub.log[2:] == [
        "POST 00000000-1.1 200",
        "POST 00000001-1.2 500",
        "POST 00000001-1.3 500",
        "POST 00000001-1.4 200",
        "POST 00000002-1.5 200",
    ]
    assert_stored_once(tmp_path / "out", prompts, stub.computed)


def test_a_sample_that_fails_at_each_attempt_is_left_out_and_named(tmp_path: Path) -> None:
    prompts = write_input(tmp_path, 3)
    dump = tmp_path / "dump"

    def answer(method: str, rid: str | None) -> int:
        return 500 if str(rid).startswith("00000001-") else 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=1))
    assert (error, summary.captured, summary.failed) == (None, 2, 1)
    assert [line for line in stub.log if "500" in line] == [
        "POST 00000001-1.2 500",
        "POST 00000001-1.3 500",
    ]
    assert json.loads((tmp_path / "out" / "failures.jsonl").read_text()) == {
        "sample": 1,
        "place": "in.jsonl line 2",
        "problem": f"{stub.url} answered 500: {{'text': ''}}",
    }
    assert_stored_once(tmp_path / "out", prompts, stub.computed, without=1)


def test_other_weights_of_the_same_model_are_refused(tmp_path: Path) -> None:
    """When the session is begun, before a sample is asked for; the store stays as it was."""
    write_input(tmp_path, 3)
    dump, output = tmp_path / "dump", tmp_path / "out"
    refuse = {"00000002-1.3": 400}
    with serving(dump, run_id="run-a", answer=lambda _, rid: refuse.get(str(rid), 200)) as stub:
        summary, _ = extract(tmp_path, (stub, dump))
    assert (summary.captured, summary.failed) == (2, 1)
    with (
        serving(dump, run_id="run-b", norm=OTHER_NORM) as stub,
        pytest.raises(ConfigError) as refused,
    ):
        extract(tmp_path, (stub, dump))
    assert str(refused.value) == (
        f"{output} belongs to other weights of the same model ({stub.url}); of the final norm of "
        "run run-a in the store and of run run-b now 3 of 256 values differ; "
        "give another output directory"
    )
    assert stub.log == ["GET 200", "POST probe-2.0 200"]
    assert [path.parent.name for path in output.glob("*/run.json")] == ["run-a"]
    assert len(open_store(output)) == 2
    with serving(dump, run_id="run-c") as stub:
        summary, error = extract(tmp_path, (stub, dump))
    assert (error, summary.captured, summary.failed) == (None, 3, 0)
    assert [run.run_id for run in open_store(output).runs] == ["run-a", "run-c"]


def test_servers_of_one_session_must_have_the_same_weights(tmp_path: Path) -> None:
    write_input(tmp_path, 3)
    a, b = tmp_path / "a", tmp_path / "b"
    other_eps = replace(NORM, eps=1e-5)
    with (
        serving(a, run_id="run-a") as one,
        serving(b, run_id="run-b", norm=other_eps) as other,
        pytest.raises(ConfigError, match=r"dtype and eps are float32, 1e-06 and float32, 1e-05"),
    ):
        extract(tmp_path, (one, a), (other, b))
    assert list((tmp_path / "out").rglob("*.hsc")) == []


class Routed(Watched):
    """Has the samples from `first` on computed by another server, as a router does."""

    def __init__(self, one: CaptureServer, other: Stub, first: int) -> None:
        super().__init__(one, None)
        self._other, self._first = other, first

    def prefill(self, rid: str, input_ids: list[int]) -> Request:
        number = rid.split("-")[1]
        if number.isdecimal() and int(number) >= self._first:
            self.computed[rid] = self._other.prefill(rid, input_ids)
            return self.computed[rid]
        return super().prefill(rid, input_ids)


@pytest.mark.parametrize("norm", [NORM, OTHER_NORM])
def test_a_run_that_was_not_met_is_looked_at_before_it_fills_the_store(
    tmp_path: Path, norm: NormWeight
) -> None:
    """One address for two servers: the probe met one, and some samples come from the other."""
    prompts = write_input(tmp_path, 8)
    dump, output = tmp_path / "dump", tmp_path / "out"
    with (
        serving(dump, run_id="run-b", norm=norm) as other,
        serving(dump, run_id="run-a") as one,
        Routed(one.server, other, 4) as routed,
        answering(routed),
    ):
        summary, error = extract(tmp_path, (routed, dump))
    assert routed.log[:2] == ["GET 200", "POST probe-1.0 200"]
    if norm == NORM:
        # It is looked at without a request.
        assert (error, summary.captured, len(routed.log)) == (None, 8, 10)
        assert_stored_once(output, prompts, routed.computed)
        assert [run.run_id for run in open_store(output).runs] == ["run-a", "run-b"]
        return
    assert str(error) == (
        f"{output} belongs to other weights of the same model ({routed.url}); of the final norm of "
        "run run-a in the store and of run run-b now 3 of 256 values differ; "
        "give another output directory"
    )
    assert (summary.state, summary.captured, summary.failed) == ("stopped", 4, 0)
    assert [run.run_id for run in open_store(output).runs] == ["run-a"]
    assert_stored_once(output, prompts[:4], routed.computed)


def test_an_output_without_a_sample_is_bound_to_no_input(tmp_path: Path) -> None:
    """A first try with a wrong file must not stand in the way of the right one."""
    dump, output = tmp_path / "dump", tmp_path / "out"
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "no tokenizer was given"}))
    with serving(dump, run_id="run-a") as stub:
        wrong, _ = extract(tmp_path, (stub, dump))
        prompts = write_input(tmp_path, 3)
        right, error = extract(tmp_path, (stub, dump))
        assert (wrong.samples, wrong.captured, wrong.failed) == (1, 0, 1)
        assert (error, right.samples, right.captured, right.failed) == (None, 3, 3, 0)
        assert Summary.read(output / EXTRACT_FILE) == right
        assert_stored_once(output, prompts, stub.computed)
        write_input(tmp_path, 4)
        with pytest.raises(ConfigError, match="belongs to another input"):
            extract(tmp_path, (stub, dump))
        # Lines whose captures were taken away are enough to bind it, and so are captures alone.
        for path in output.rglob("*.hsc"):
            path.rename(tmp_path / path.name)
        with pytest.raises(ConfigError, match="belongs to another input"):
            extract(tmp_path, (stub, dump))
        (output / "samples.jsonl").unlink()
        (tmp_path / "000000001.hsc").touch()
        (tmp_path / "000000001.hsc").rename(output / "run-a" / "000000001.hsc")
        with pytest.raises(ConfigError, match="belongs to another input"):
            extract(tmp_path, (stub, dump))


@pytest.mark.parametrize("lost", ["run-a/index-tp0.jsonl", "samples.jsonl"])
def test_what_is_in_the_output_is_not_asked_for_again(tmp_path: Path, lost: str) -> None:
    """The captures say which samples they are of, whatever beside them is lost."""
    prompts = write_input(tmp_path, 6)
    dump, output = tmp_path / "dump", tmp_path / "out"
    with serving(dump, run_id="run-a") as stub:
        extract(tmp_path, (stub, dump))
        (output / lost).unlink()
        asked = len(stub.computed)
        summary, error = extract(tmp_path, (stub, dump))
        assert (error, summary.captured, summary.failed) == (None, 6, 0)
        assert [line for line in stub.log if "probe" not in line and "POST" in line] == [
            f"POST {number:08d}-1.{number + 1} 200" for number in range(6)
        ]
        assert len(stub.computed) == asked + 1, "only the probe"
        assert_stored_once(output, prompts, stub.computed)


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("extract.json", None, r"holds captures or samples\.jsonl, but no extract\.json, which"),
        ("extract.json", b"", r"extract\.json: not valid JSON.*; put .*/extract\.json back as it"),
        ("run-a/run.json", None, r"/run-a holds captures, but no run\.json: put it back"),
        ("run-a/run.json", b"{", r"/run-a/run\.json: not valid JSON.*; put it back"),
        ("samples.jsonl", b"{\n", r"samples\.jsonl: line 1: not valid JSON.*; remove that line"),
    ],
)
def test_an_output_that_cannot_be_told_is_refused(
    tmp_path: Path, name: str, broken: bytes | None, message: str
) -> None:
    """No sample is asked for, and the output stays as it is: begun anew it would be doubled."""
    write_input(tmp_path, 3)
    dump, output = tmp_path / "dump", tmp_path / "out"
    with serving(dump, run_id="run-a") as stub:
        extract(tmp_path, (stub, dump))
        (output / name).unlink()
        if broken is not None:
            (output / name).write_bytes(broken)
        files, asked = sorted(output.rglob("*")), len(stub.computed)
        with pytest.raises(ConfigError, match=message):
            extract(tmp_path, (stub, dump))
        assert (sorted(output.rglob("*")), len(stub.computed)) == (files, asked)


def test_the_key_of_an_output_is_durable_before_the_first_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stays so: what replaces it later is durable, too. Where it cannot be, nothing begins."""
    write_input(tmp_path, 3)
    dump = tmp_path / "dump"
    written: list[bool] = []
    write = Summary.write
    full = True

    def watched(self: Summary, path: Path, mode: int = 0o600, *, durable: bool = False) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        written.append(durable)
        write(self, path, mode, durable=durable)

    monkeypatch.setattr(Summary, "write", watched)
    at_samples: list[int] = []

    def answer(_: str, rid: str | None) -> int:
        if is_sample(rid):
            at_samples.append(len(written))
        return 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        with pytest.raises(OSError, match="No space left"):
            extract(tmp_path, (stub, dump))
        assert at_samples == []
        full = False
        summary, _ = extract(tmp_path, (stub, dump))
    assert summary.captured == len(at_samples) == 3
    assert at_samples[0] == 1
    assert written
    assert all(written)


def test_two_names_of_a_dump_directory_are_one(tmp_path: Path) -> None:
    """Followed under each, it would lose under one name what is waited for under the other."""
    prompts = write_input(tmp_path, 12)
    dump, other = tmp_path / "dump", tmp_path / "link"
    other.symlink_to(dump)
    with serving(dump, run_id="run-a") as stub:
        places = [(stub, dump), (stub, other), (stub, tmp_path / "x" / ".." / "dump")]
        (tmp_path / "x").mkdir()
        effort = Effort(concurrency=2, retries=0, capture_seconds=30)
        summary, error = extract(tmp_path, *places, effort=effort)
        assert (error, summary.captured, summary.failed) == (None, 12, 0)
        assert_stored_once(tmp_path / "out", prompts, stub.computed)


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    write_input(tmp_path, 1)
    (tmp_path / "dump").mkdir()
    output = tmp_path / "out"
    output.write_text("mine")
    with pytest.raises(ConfigError, match=f"^--output {output} is a file: give a directory"):
        Session(tmp_path / "in.jsonl", None, (0, 1), [], output, ONE_BY_ONE)
    assert output.read_text() == "mine"


def test_one_sample_in_one_session_is_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_input(tmp_path, 1)
    dump, output = tmp_path / "dump", tmp_path / "out"
    with serving(dump, run_id="run-a") as stub:
        places = ["--server", stub.url, "--dump-dir", str(dump), "--output", str(output)]
        assert main(["extract", "--input", str(tmp_path / "in.jsonl"), *places]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"1 of 1 sample is in {output}: 2 tokens, ")
    assert re.search(r", 0 failed, 0:0\d in 1 session\n$", said)


def test_a_server_that_stays_away_is_told_in_words(tmp_path: Path) -> None:
    """How long it was waited for, that nothing is lost, and what to do."""
    write_input(tmp_path, 3)
    dump, asked = tmp_path / "dump", itertools.count()

    def answer(method: str, rid: str | None) -> int:
        return 503 if is_sample(rid) or (rid is None and next(asked)) else 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        effort = Effort(concurrency=1, server_seconds=0.1)
        summary, error = extract(tmp_path, (stub, dump), effort=effort)
    assert (summary.state, summary.captured, summary.failed) == ("stopped", 0, 0)
    assert isinstance(error, ServerGoneError)
    said = re.fullmatch(
        re.escape(stub.url) + r" has been gone for \d+ seconds? \(--server-timeout\): (.*); "
        r"nothing is lost: start the server, and run the same command again to go on",
        str(error),
    )
    assert said is not None
    assert said[1].startswith("answered 503: ")
