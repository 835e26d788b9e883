"""Servers that go away, never answer or take nothing: which prompt is failed, and what ends."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from capture_server import SECONDS
from hs_capture import ConfigError
from hs_capture.cli import main
from hs_capture.extract.client import Client, NobodyError, ServerGoneError
from hs_capture.extract.extraction import Effort
from hs_capture.extract.plan import EXTRACT_FILE, Summary
from session_stub import (
    assert_stored_once,
    extract,
    is_sample,
    samples_of,
    serving,
    write_input,
)


def failures_of(output: Path) -> list[dict[str, object]]:
    path = output / "failures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_prompt_that_takes_the_server_down_is_failed_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    """It is asked for twice among the others, then behind them; the next session tries it again."""
    prompts = write_input(tmp_path, 5)
    dump, output = tmp_path / "dump", tmp_path / "out"
    poisonous = True

    def answer(method: str, rid: str | None) -> int:
        return 502 if poisonous and str(rid).startswith("00000001-") else 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=0))
        assert (error, summary.state) == (None, "finished")
        assert (summary.captured, summary.failed) == (4, 1)
        assert [line.split()[1] for line in stub.log if line.startswith("POST 0")] == [
            "00000000-1.1",
            "00000001-1.2",
            "00000001-1.3",
            "00000002-1.4",
            "00000003-1.5",
            "00000004-1.6",
            "00000001-1.7",
            "00000001-1.8",
        ]
        assert failures_of(output) == [
            {
                "sample": 1,
                "place": "in.jsonl line 2",
                "problem": "the server went away 4 times with this prompt under way, 2 of them "
                f"with no other: {stub.url} answered 502: {{'text': ''}}",
            }
        ]
        assert_stored_once(output, prompts, stub.computed, without=1)
        poisonous = False
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=0))
        assert (error, summary.captured, summary.failed) == (None, 5, 0)
        assert_stored_once(output, prompts, stub.computed)


def test_a_server_that_is_down_for_everybody_costs_no_prompt(tmp_path: Path) -> None:
    """Again and again, and also while a prompt is under way that was put behind the others."""
    prompts = write_input(tmp_path, 3)
    dump, asked = tmp_path / "dump", itertools.count()
    down = 0

    def answer(method: str, rid: str | None) -> int:
        nonlocal down
        if str(rid).startswith("00000001-") and next(asked) < 3:
            # For this request, and for the next look.
            down = 2
        if down:
            down -= 1
            return 502
        return 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=0))
    assert (error, summary.captured, summary.failed) == (None, 3, 0)
    assert [line for line in stub.log if line.startswith("POST 0")] == [
        "POST 00000000-1.1 200",
        "POST 00000001-1.2 502",
        "POST 00000001-1.3 502",
        "POST 00000002-1.4 200",
        "POST 00000001-1.5 502",
        "POST 00000001-1.6 200",
    ]
    assert_stored_once(tmp_path / "out", prompts, stub.computed)


def test_a_request_that_reached_nobody_says_nothing_of_its_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = write_input(tmp_path, 2)
    dump, tries = tmp_path / "dump", itertools.count()
    prefill = Client.prefill

    def refuse(client: Client, input_ids: NDArray[np.int64], rid: str) -> int | None:
        if "-00000000-" in rid and next(tries) < 5:
            raise NobodyError(f"{client.url}: Connection refused")
        return prefill(client, input_ids, rid)

    monkeypatch.setattr(Client, "prefill", refuse)
    with serving(dump, run_id="run-a") as stub:
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=0))
    assert (error, summary.captured, summary.failed) == (None, 2, 0)
    assert [line for line in stub.log if line.startswith("POST 0")] == [
        "POST 00000000-1.6 200",
        "POST 00000001-1.7 200",
    ]
    assert_stored_once(tmp_path / "out", prompts, stub.computed)


def test_a_prompt_that_is_never_answered_is_failed(tmp_path: Path) -> None:
    write_input(tmp_path, 3)
    dump, output = tmp_path / "dump", tmp_path / "out"
    over = threading.Event()

    def answer(method: str, rid: str | None) -> int:
        if str(rid).startswith("00000001-"):
            over.wait(SECONDS)
            return 502
        return 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        places = ["--server", stub.url, "--dump-dir", str(dump), "--output", str(output)]
        effort = ["--concurrency", "1", "--retries", "0", "--request-timeout", "3"]
        code = main(["extract", "--input", str(tmp_path / "in.jsonl"), *places, *effort])
        over.set()
    assert code == 1
    (failure,) = failures_of(output)
    assert failure["sample"] == 1
    assert str(failure["problem"]).endswith(f": {stub.url}: no answer within 3 s")
    assert Summary.read(output / EXTRACT_FILE).captured == 2


def test_a_server_that_answers_but_computes_nothing_is_not_waited_for_for_ever(
    tmp_path: Path,
) -> None:
    write_input(tmp_path, 3)
    dump, asked = tmp_path / "dump", itertools.count()

    def answer(method: str, rid: str | None) -> int:
        return 502 if method == "POST" and next(asked) >= 2 else 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        effort = Effort(concurrency=1, server_seconds=2)
        summary, error = extract(tmp_path, (stub, dump), effort=effort)
    assert isinstance(error, ServerGoneError)
    assert (summary.state, summary.captured, summary.failed) == ("stopped", 1, 0)
    assert "(--server-timeout): answered 502: " in str(error)


def test_a_server_that_is_gone_does_not_hold_up_what_another_has_finished(tmp_path: Path) -> None:
    prompts = write_input(tmp_path, 12)
    a, b = tmp_path / "a", tmp_path / "b"
    dead = threading.Event()

    def die(method: str, rid: str | None) -> int:
        if is_sample(rid):
            dead.set()
        return 502 if dead.is_set() else 200

    def live(method: str, rid: str | None) -> int:
        if is_sample(rid):
            assert dead.wait(SECONDS)
        return 200

    with (
        serving(a, run_id="run-a", answer=die) as one,
        serving(b, run_id="run-b", answer=live) as other,
    ):
        effort = Effort(concurrency=1, server_seconds=60)
        summary, error = extract(tmp_path, (one, a), (other, b), effort=effort)
    assert (error, summary.state, summary.captured) == (None, "finished", 12)
    assert_stored_once(tmp_path / "out", prompts, other.computed)


def test_a_server_that_hangs_holds_no_prompt_that_another_could_have(tmp_path: Path) -> None:
    """One of its threads asks whether it computes again, and in the end nobody waits for that."""
    prompts = write_input(tmp_path, 30)
    a, b = tmp_path / "a", tmp_path / "b"
    hung, over = threading.Event(), threading.Event()

    def hang(method: str, rid: str | None) -> int:
        if is_sample(rid):
            hung.set()
        if method == "POST" and hung.is_set():
            over.wait(SECONDS)
        return 200

    def live(method: str, rid: str | None) -> int:
        if is_sample(rid):
            assert hung.wait(SECONDS)
        return 200

    with (
        serving(a, run_id="run-a", answer=hang) as one,
        serving(b, run_id="run-b", answer=live) as other,
    ):
        effort = Effort(concurrency=4, server_seconds=60, silence_seconds=2)
        summary, error = extract(tmp_path, (one, a), (other, b), effort=effort)
        assert (error, summary.state, summary.captured) == (None, "finished", 30)
        over.set()
    assert_stored_once(tmp_path / "out", prompts, other.computed)


def test_a_server_that_takes_nothing_for_a_while_fails_no_prompt(tmp_path: Path) -> None:
    """Nobody has had a prompt that is answered with 503: it brought nobody down."""
    prompts = write_input(tmp_path, 3)
    dump, asked = tmp_path / "dump", itertools.count()

    def answer(method: str, rid: str | None) -> int:
        return 503 if is_sample(rid) and next(asked) < 6 else 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        summary, error = extract(tmp_path, (stub, dump), effort=Effort(1, retries=0))
    assert (error, summary.captured, summary.failed) == (None, 3, 0)
    assert_stored_once(tmp_path / "out", prompts, stub.computed)


def test_rows_that_are_refused_do_not_stop_the_others(tmp_path: Path) -> None:
    """However many are in a row. The server is asked after each fifty whether it takes any."""
    prompts = write_input(tmp_path, 120)
    dump, output = tmp_path / "dump", tmp_path / "out"

    def answer(method: str, rid: str | None) -> int:
        return 400 if is_sample(rid) and int(str(rid)[:8]) < 110 else 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        summary, error = extract(tmp_path, (stub, dump))
        assert (error, summary.captured, summary.failed) == (None, 10, 110)
        assert [failure["sample"] for failure in failures_of(output)] == list(range(110))
        assert sum(line.startswith("POST probe-1.") for line in stub.log) == 3
        numbers = {sample.number for sample in samples_of(output).values()}
        assert numbers == set(range(110, len(prompts)))


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_server_that_refuses_everything_ends_the_session(tmp_path: Path, status: int) -> None:
    write_input(tmp_path, 120)
    dump, asked = tmp_path / "dump", itertools.count()

    def answer(method: str, rid: str | None) -> int:
        return status if method == "POST" and next(asked) >= 3 else 200

    with serving(dump, run_id="run-a", answer=answer) as stub:
        summary, error = extract(tmp_path, (stub, dump))
    said = f"{stub.url} answered {status}: {{'text': ''}}"
    assert isinstance(error, ConfigError)
    assert (summary.state, summary.captured, summary.failed) == ("stopped", 2, 50)
    if status == 400:
        assert str(error) == f"a prompt of one token was not taken: {said}"
    else:
        assert str(error) == f"50 samples failed one after the other, the last: {said}"
