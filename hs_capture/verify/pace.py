"""How much a run has moved, and what that took on either side of the ring."""

from __future__ import annotations

from hs_capture.counted import count_text
from hs_capture.verify.report import Check, size_text
from hs_capture.verify.runs import Run

HELD_UP_HINT = "more SGLANG_HS_WORKERS, a larger SGLANG_HS_BUFFER, or a faster drain"


def look_at_pace(run: Run) -> list[Check]:
    """A line for the server and one for the writer; none before the first row."""
    counters = run.counters
    if not counters["rows_taken"]:
        return []
    hooks = counters["hook_microseconds"]
    passes = max(1, counters["batches"])
    server = (
        f"{count_text(counters['rows_taken'], 'row')} ({size_text(counters['taken_bytes'])}) of "
        f"{count_text(counters['batches'], 'pass', 'passes')} taken; hooks {_seconds(hooks)} "
        f"({hooks / passes / 1000:.2f} ms a pass), copies {_seconds(counters['copy_microseconds'])}"
        f", held up {_seconds(counters['blocked_microseconds'])}"
        f", dropping {_seconds(counters['dropping_microseconds'])}"
    )
    writer = (
        f"compressing {_seconds(counters['compress_microseconds'])}, writing "
        f"{_seconds(counters['write_microseconds'])}; {size_text(counters['queued_bytes'])} queued"
    )
    held_up = counters["blocked_microseconds"] or counters["dropping_microseconds"]
    return [
        Check(
            "server's part",
            "warn" if held_up else "ok",
            f"{server}, run {run.info.run_id}",
            HELD_UP_HINT if held_up else "",
        ),
        Check("writer's part", "ok", f"{writer}, run {run.info.run_id}"),
    ]


def _seconds(microseconds: int) -> str:
    return f"{microseconds / 1e6:.2f} s"
