"""Our counters as Prometheus metrics: their names, their values, and nothing where they are off."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hs_capture.format.counters import COUNTERS
from hs_capture.hooks.metrics import metric_name

_UPDATES = """
from prometheus_client import generate_latest
from hs_capture.hooks.metrics import Metrics

metrics = Metrics({"model_name": "m", "rank": "r"})
metrics.update({"tokens": 5, "blocked_microseconds": 250_000, "open_records": 3})
metrics.update({"tokens": 12, "blocked_microseconds": 1_500_000, "open_records": 1})
# A new writer may have lost count of a moment; what was seen stays.
metrics.update({"tokens": 11, "open_records": 0})
print(generate_latest().decode())
"""
_OFF = """
import sys
from pathlib import Path
import hs_capture.hooks.runner
import hs_capture.hooks.session
print("prometheus_client" in sys.modules)
"""


def _run(program: str) -> list[str]:
    """Run `program` in an interpreter of its own: metrics are registered once a process."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_counters_grow_and_levels_go_up_and_down() -> None:
    lines = _run(_UPDATES)
    labels = '{model_name="m",rank="r"}'
    assert f"hs_capture:tokens_total{labels} 12.0" in lines
    assert f"hs_capture:blocked_seconds_total{labels} 1.5" in lines
    assert f"hs_capture:open_records{labels} 0.0" in lines
    assert f"hs_capture:rows_dropped_total{labels} 0.0" in lines
    assert "# TYPE hs_capture:tokens_total counter" in lines
    assert "# TYPE hs_capture:open_records gauge" in lines


def test_every_counter_has_a_metric() -> None:
    lines = _run(_UPDATES)
    for name in COUNTERS:
        assert any(line.startswith(f"{metric_name(name)}{{") for line in lines), name


def test_without_metrics_nothing_of_them_is_imported() -> None:
    assert _run(_OFF) == ["False"]


def test_the_page_on_monitoring_has_every_counter_with_its_unit() -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.* \| .* \| `.*)` \|$", page, re.MULTILINE))
    assert list(rows) == list(COUNTERS)
    for name, row in rows.items():
        unit, meaning, metric = row.replace("`", "").split(" | ")
        assert (meaning, metric) == (COUNTERS[name], metric_name(name))
        assert (unit == "bytes") == name.endswith("_bytes")
        assert (unit == "µs") == name.endswith("_microseconds")
