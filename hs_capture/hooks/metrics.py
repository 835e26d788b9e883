"""Our counters among SGLang's Prometheus metrics.

With ``--enable-metrics`` SGLang uses prometheus_client in multiprocess mode: each process keeps its
values in files of a common directory, and the HTTP server reads all of them for ``/metrics``. So
values cannot be asked for when they are read; a thread of our own brings them up to date.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hs_capture.faults import FaultLog
from hs_capture.format.counters import COUNTERS, LEVELS

PREFIX = "hs_capture:"
UPDATE_SECONDS = 1.0
logger = logging.getLogger("hs_capture")
_MICROSECONDS = "_microseconds"


def metric_name(counter: str) -> str:
    """Return the name of a counter in ``/metrics``: times are in seconds there, as is usual."""
    if counter in LEVELS:
        return f"{PREFIX}{counter}"
    return f"{PREFIX}{counter.replace(_MICROSECONDS, '_seconds')}_total"


class Metrics:
    """The counters of one rank as metrics of this process."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        """Register the metrics. Only to be called when SGLang has set its metrics up."""
        # SGLang has it where metrics are on. It looks for the common directory when it is imported.
        from prometheus_client import Counter, Gauge

        self._values = dict.fromkeys(COUNTERS, 0)
        self._metrics: dict[str, Any] = {}
        for name, meaning in COUNTERS.items():
            metric = (
                Gauge(metric_name(name), meaning, labels, multiprocess_mode="mostrecent")
                if name in LEVELS
                else Counter(metric_name(name), meaning, labels)
            )
            self._metrics[name] = metric.labels(**labels)

    def update(self, counters: Mapping[str, int]) -> None:
        """Bring the metrics up to date."""
        for name, value in counters.items():
            if name in LEVELS:
                self._metrics[name].set(value)
            elif value > self._values[name]:
                unit = 1e-6 if name.endswith(_MICROSECONDS) else 1
                self._metrics[name].inc((value - self._values[name]) * unit)
                self._values[name] = value


def publish(read: Callable[[], Mapping[str, int]], labels: Mapping[str, str]) -> None:
    """Register metrics and keep them at what `read` returns, as long as this process lives.

    Raises:
        ImportError, ValueError: they cannot be registered.
    """
    metrics = Metrics(labels)
    faults = FaultLog(logger)

    def keep_up() -> None:
        pause = threading.Event()
        while True:
            try:
                metrics.update(read())
            except Exception as error:
                faults.record("bringing metrics up to date", error)
            pause.wait(UPDATE_SECONDS)

    threading.Thread(target=keep_up, name="hs-capture-metrics", daemon=True).start()
