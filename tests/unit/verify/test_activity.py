"""What was captured, what was lost, who is gone, and which start was refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capture_files import write_capture
from hs_capture.cli import main
from hs_capture.format.run import Refusal
from hs_capture.verify import activity
from linked_captures import write_turn
from unit.export.stores import streams

Verify = Callable[..., Any]
NewRun = Callable[..., Path]


def test_incomplete_captures_are_counted_with_their_reasons(
    verify: Verify, new_run: NewRun
) -> None:
    run = new_run(captures=1, counters={"captures": 3, "complete": 1, "incomplete": 2})
    for sequence in (1, 2):
        rows = streams(4, sequence)
        write_capture(run, sequence, "x", rows, missing=[(0, 2)], reason="prefix_cache")
    answer = verify()
    assert answer.exit_code == 0
    assert answer.check("fired")["text"].startswith(
        "3 captures (2 incomplete: 2 prefix_cache), 5 tokens"
    )


def test_captures_with_rows_of_others_are_counted_apart(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=0, counters={"captures": 4, "complete": 1, "incomplete": 3})
    write_turn(run, 0, 10)
    write_turn(run, 1, 18, [(0, 10, 0)])
    write_turn(run, 2, 30, [(0, 10, 0)], missing=[(0, 12)])
    write_turn(run, 3, 30, [(0, 10, 7)])
    answer = verify()
    assert answer.exit_code == 0
    assert answer.check("fired")["text"].startswith(
        "4 captures (1 with rows of others) (2 incomplete: 1 prefix_cache, 1 source_gone), "
    )


@pytest.mark.parametrize(
    ("counter", "text"),
    [
        ("rows_dropped", "1,234 rows dropped, run run-a"),
        ("hook_errors", "1,234 errors in the hooks inside the server, run run-a; the last: boom"),
        ("writer_errors", "1,234 errors in the writer, run run-a; the last: boom"),
        ("writer_restarts", "1,234 restarts of the writer, run run-a"),
        ("lost", "1,234 captures given up without a file, run run-a"),
        ("requests_untold", "1,234 requests dropped without even a line in the index, run run-a"),
    ],
)
def test_losses_are_warnings(verify: Verify, new_run: NewRun, counter: str, text: str) -> None:
    new_run(captures=1, counters={counter: 1234}, last_error="boom")
    answer = verify()
    assert answer.exit_code == 0
    check = answer.check(counter.replace("_", " "))
    assert (check["state"], check["text"]) == ("warn", text)
    assert check["hint"]


def test_a_server_that_was_killed_with_its_writer_is_said(
    verify: Verify, new_run: NewRun, gone: int
) -> None:
    new_run(captures=1, server_pid=gone, writer_pid=gone, age=300)
    answer = verify()
    assert answer.exit_code == 0
    assert answer.check("writer")["text"] == (
        f"run run-a says serving, but server process {gone} is gone "
        "and the writer was last heard 5 min ago"
    )
    assert answer.check("attached")["state"] == "warn"
    assert answer.said["runs"][0]["live"] is False


@pytest.mark.parametrize(
    ("init", "pid", "what"),
    [
        (
            "tini",
            None,
            "process 1 of this container is tini, which ends when SGLang has",
        ),
        ("python", 1, "SGLang is process 1 of this container"),
        ("bash", None, None),
    ],
)
def test_a_server_whose_container_ends_with_it_is_named_with_the_way_out(
    verify: Verify,
    new_run: NewRun,
    monkeypatch: pytest.MonkeyPatch,
    init: str,
    pid: int | None,
    what: str | None,
) -> None:
    monkeypatch.setattr(activity, "name_of_first_process", lambda: init)
    new_run(captures=1, server_pid=os.getpid() if pid is None else pid)
    answer = verify()
    assert answer.exit_code == 0
    if what is None:
        assert "container" not in [check["name"] for check in answer.said["checks"]]
        return
    assert answer.check("container") == {
        "name": "container",
        "state": "warn",
        "text": f"{what}: when the server stops, the writer is killed with it and captures that "
        "are not published yet are lost",
        "hint": "start the server through a shell that stays for the writer: see 'In a container' "
        "in README.md",
    }
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert "\n### In a container\n" in readme


@pytest.mark.parametrize("serves", [False, True])
def test_a_store_that_captures_were_moved_to_is_well(
    verify: Verify,
    new_run: NewRun,
    dump: Path,
    tmp_path: Path,
    gone: int,
    serves: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Moved by drain itself, from a server that has ended or serves on."""
    pid = os.getpid() if serves else gone
    new_run(captures=2, server_pid=pid)
    store = tmp_path / "store"
    assert main(["drain", "--store", str(dump), "--output", str(store)]) == 0
    capsys.readouterr()
    answer = verify(directory=store)
    assert answer.exit_code == 0
    assert answer.check("attached") == {
        "name": "attached",
        "state": "ok",
        "text": "run run-a, a store that captures were moved to: DeepseekV2ForCausalLM of SGLang "
        "0.5.23, door pth, layers 1,3,4, final pre_norm, 2 functions wrapped",
        "hint": "",
    }
    sizes = [path.stat().st_size for path in store.rglob("*.hsc")]
    assert len(sizes) == 2
    assert answer.check("fired")["text"].startswith(
        f"2 captures, 10 tokens, 640 bytes stored in {sum(sizes) / 1024:.1f} KiB"
    )
    assert answer.checks("writer") == []
    assert answer.said["runs"][0]["live"] is False
    assert answer.said["summary"] == (
        "the hook fired and the captures are sound; no server runs now"
    )


def test_a_process_that_got_the_number_of_a_dead_server_is_not_taken_for_it(
    verify: Verify, new_run: NewRun
) -> None:
    # This process is younger than the run, so it cannot be the one that wrote it.
    new_run(captures=1, created=1000.0, age=300)
    assert verify().said["runs"][0]["live"] is False


def test_a_server_out_of_sight_with_a_young_heartbeat_serves(
    verify: Verify, new_run: NewRun, gone: int
) -> None:
    new_run(captures=1, server_pid=gone, age=2)
    answer = verify()
    assert answer.said["runs"][0]["live"] is True
    assert answer.checks("writer") == []


def test_a_heartbeat_ahead_of_the_clock_is_no_sign_of_life(
    verify: Verify, new_run: NewRun, gone: int
) -> None:
    """The clock was put back, and a writer that lived would have written a new one."""
    new_run(captures=1, server_pid=gone, writer_pid=gone, age=-7200)
    answer = verify()
    assert answer.exit_code == 0
    assert answer.said["runs"][0]["live"] is False
    assert answer.check("writer")["text"].endswith("last heard 2 h ahead of the clock")
    assert answer.check("fired")["text"].endswith("last 2 h ahead of the clock")


def test_a_server_that_serves_on_after_its_clock_was_put_back_is_live(
    verify: Verify, new_run: NewRun
) -> None:
    new_run(captures=1, created=time.time() + 7200, age=1)
    answer = verify()
    assert answer.exit_code == 0
    assert answer.said["runs"][0]["live"] is True
    assert answer.checks("writer") == []


@pytest.mark.parametrize("dead", [True, False])
def test_a_writer_that_is_silent_while_its_server_serves_is_said(
    verify: Verify, new_run: NewRun, gone: int, dead: bool
) -> None:
    new_run(captures=1, age=60, writer_pid=gone if dead else os.getpid())
    what = f"process {gone} is gone" if dead else "is silent"
    assert verify().check("writer")["text"] == (
        f"the writer of run run-a {what}; last heard 60 s ago"
    )


def test_a_refused_start_is_said_with_its_reason(verify: Verify, dump: Path) -> None:
    Refusal(time.time() - 1, 77, "0.5.23", "layer 99 is out of range").write(
        dump / "last-refusal.json"
    )
    answer = verify()
    assert answer.exit_code == 2
    text = answer.check("start refused")["text"]
    assert text == "1 s ago, SGLang 0.5.23: layer 99 is out of range"


def test_a_refusal_after_an_ended_run_means_not_attached(
    verify: Verify, new_run: NewRun, dump: Path, gone: int
) -> None:
    new_run(captures=1, state="ended", server_pid=gone, created=time.time() - 60)
    Refusal(time.time(), 77, "0.5.23", "no").write(dump / "last-refusal.json")
    assert verify().exit_code == 2


def test_a_refusal_before_the_newest_run_is_history(
    verify: Verify, new_run: NewRun, dump: Path
) -> None:
    Refusal(time.time() - 60, 77, "0.5.23", "no").write(dump / "last-refusal.json")
    new_run(captures=1)
    answer = verify()
    assert answer.exit_code == 0
    assert answer.checks("start refused") == []
