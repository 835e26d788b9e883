"""What a rank counts is what it did."""

from __future__ import annotations

from pathlib import Path

from capture_server import ROW_BYTES, CaptureServer, prompt
from hs_capture.format.counters import COUNTERS

TIMES = ("copy_microseconds", "compress_microseconds", "write_microseconds")


def test_rows_and_bytes_are_the_same_on_both_sides(tmp_path: Path) -> None:
    with CaptureServer(tmp_path) as server:
        server.prefill((prompt(0, 40), 0, 40), (prompt(1, 30), 0, 20))
        server.prefill((prompt(1, 30), 20, 10))
    counters = server.status().counters
    assert counters == server.producer.region.counters()
    assert set(counters) == set(COUNTERS)
    files = sum(path.stat().st_size for path in server.run_dir.rglob("*.hsc"))
    expected = {
        "rows_taken": 70,
        "taken_bytes": 70 * ROW_BYTES,
        "captures": 2,
        "complete": 2,
        "tokens": 70,
        "raw_bytes": 70 * ROW_BYTES,
        "stored_bytes": files,
    }
    others = dict.fromkeys(COUNTERS, 0) | expected
    assert {k: v for k, v in counters.items() if k not in TIMES} == {
        k: v for k, v in others.items() if k not in TIMES
    }
    assert all(counters[name] > 0 for name in TIMES)


def test_the_next_writer_goes_on_counting(tmp_path: Path) -> None:
    first, second = prompt(0, 40), prompt(1, 40)
    with CaptureServer(tmp_path) as server:
        server.prefill((first, 0, 40))
        server.wait_drained()
        before = server.producer.region.counters()
        server.kill_writer()
        server.prefill((second, 0, 40))
    after = server.status().counters
    for name in ("compress_microseconds", "write_microseconds"):
        assert after[name] > before[name] > 0
    assert (after["rows_taken"], after["tokens"]) == (80, 80)
