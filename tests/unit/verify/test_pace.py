"""What the counters of a run say to people."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Verify = Callable[..., Any]
NewRun = Callable[..., Path]

COUNTERS = {
    "rows_taken": 4096,
    "taken_bytes": 3 << 20,
    "batches": 4,
    "hook_microseconds": 10_000,
    "copy_microseconds": 30_000,
    "blocked_microseconds": 1_250_000,
    "dropping_microseconds": 500_000,
    "compress_microseconds": 2_000_000,
    "write_microseconds": 123_000,
    "queued_bytes": 1 << 20,
}


def test_rows_bytes_and_times_are_said_for_server_and_writer(
    verify: Verify, new_run: NewRun
) -> None:
    new_run(captures=1, counters=COUNTERS)
    answer = verify()
    assert answer.check("server's part")["text"] == (
        "4,096 rows (3.0 MiB) of 4 passes taken; hooks 0.01 s (2.50 ms a pass), copies 0.03 s, "
        "held up 1.25 s, dropping 0.50 s, run run-a"
    )
    assert answer.check("writer's part")["text"] == (
        "compressing 2.00 s, writing 0.12 s; 1.0 MiB queued, run run-a"
    )
    assert answer.said["runs"][0]["counters"].items() >= COUNTERS.items()


def test_a_server_that_was_held_up_is_a_warning(verify: Verify, new_run: NewRun) -> None:
    new_run(captures=1, counters=COUNTERS)
    said = verify().check("server's part")
    assert (said["state"], said["hint"]) == (
        "warn",
        "more SGLANG_HS_WORKERS, a larger SGLANG_HS_BUFFER, or a faster drain",
    )


def test_a_server_that_never_waited_is_well(verify: Verify, new_run: NewRun) -> None:
    new_run(captures=1, counters={**COUNTERS, **dict.fromkeys(HELD_UP, 0)})
    said = verify().check("server's part")
    assert (said["state"], said["hint"]) == ("ok", "")


HELD_UP = ("blocked_microseconds", "dropping_microseconds")


def test_before_the_first_row_nothing_is_said(verify: Verify, new_run: NewRun) -> None:
    new_run()
    answer = verify()
    assert answer.checks("server's part") == answer.checks("writer's part") == []
