"""How far an extraction is, in one line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from fake_terminal import Clock, Terminal
from hs_capture import progress as line
from hs_capture.extract import progress
from hs_capture.extract.ledger import Totals
from hs_capture.extract.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(line, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("stream", "start", "end"), [(Terminal(), "\r\033[K", ""), (io.StringIO(), "", "\n")]
)
def test_the_line_says_what_was_done_and_what_is_left(
    clock: Clock, tmp_path: Path, stream: io.StringIO, start: str, end: str
) -> None:
    """Speed and time left are those of this session; an earlier one had captured 1,000 samples."""
    told = Progress(6_000, [tmp_path], stream)
    totals = Totals(captured=1_000, tokens=50_000, raw_bytes=3_000_000, stored_bytes=2_000_000)
    told.tell(totals, in_flight=8, failed=0)
    assert stream.getvalue() == ""
    clock.now += 20.0
    totals.captured, totals.tokens = 2_000, 100_000
    totals.raw_bytes, totals.stored_bytes = 6_000_000, 4_500_000
    told.tell(totals, in_flight=7, failed=50)
    # 1,000 samples took 20 s, and 6,000 - 2,000 - 50 are left.
    parts = [
        "2,000 of 6,000 samples",
        "2,500 tokens/s",
        "4.50 MB written",
        "ratio 1.33",
        "7 in flight",
        "50 failed",
        "FREE",
        "1:19 left",
    ]
    expected = re.escape(start + ", ".join(parts) + end)
    free = rf"[0-9]+(\.[0-9]{{2}} [kMGT])? ?B free in {re.escape(str(tmp_path))}"
    assert re.fullmatch(expected.replace("FREE", free), stream.getvalue())


def test_what_is_not_known_yet_is_left_out(clock: Clock, tmp_path: Path) -> None:
    """Nothing is captured, and a dump directory is not there: no ratio, no space, no time left."""
    stream = io.StringIO()
    told = Progress(3, [tmp_path / "none"], stream)
    told.tell(Totals(), in_flight=1, failed=0)
    clock.now += 10.0
    told.tell(Totals(), in_flight=2, failed=1)
    assert stream.getvalue() == ("0 of 3 samples, 0 tokens/s, 0 B written, 2 in flight, 1 failed\n")
