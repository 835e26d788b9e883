"""Which runs may fill a store: each is looked at once, before a capture of it is taken."""

from __future__ import annotations

import threading
from pathlib import Path

from hs_capture.errors import ConfigError
from hs_capture.extract.arrivals import Arrival
from hs_capture.extract.plan import Target, refuse_other_target, refuse_other_weights
from hs_capture.format.catalog import RUN_FILE
from hs_capture.format.run import RunInfo
from hs_capture.selection import Origin


class Approval:
    """Says no to captures that do not belong with those of a store. For several threads."""

    def __init__(self, output: Path, targets: list[Target], origins: list[Origin]) -> None:
        """`targets` is what the store at `output` was captured of, `origins` what its captures
        come from."""
        self.target: Target | None = None
        """What the run that was approved last captures."""
        self._output, self._targets = output, targets
        self._origins = list(origins)
        self._approved: set[tuple[Path, int]] = set()
        self._versions: dict[Path, int] = {}
        """The version of the weights with which a run fills the store, by the run's folder."""
        self._lock = threading.Lock()

    def meet(self, server: str, probe: Arrival) -> RunInfo:
        """The run that `probe` is of, to be told apart before a sample is asked for.

        Raises `ConfigError` when it captures something else than the store holds, or with other
        weights.
        """
        with self._lock:
            run = RunInfo.read(probe.run / RUN_FILE)
            self._approve(server, probe, run)
            return run

    def require(self, server: str, capture: Arrival) -> None:
        """Raise as `meet` does, for a run that is not the one that was met.

        A router may send a sample to another server than the probe, and a server may be another
        one, or have other weights, without anybody having seen it go. Costs no request, and but
        for the first capture of a run no look at a file.
        """
        version = capture.entry.weights_version
        with self._lock:
            met = self._versions.get(capture.run)
            if met is None:
                self._approve(server, capture, RunInfo.read(capture.run / RUN_FILE))
            elif met != version:
                raise ConfigError(
                    f"the server's weights were changed: this capture is of version {version}, "
                    f"those of {capture.run} are of version {met}: start the server again"
                )

    def _approve(self, server: str, arrival: Arrival, run: RunInfo) -> None:
        version = arrival.entry.weights_version
        if (arrival.run, version) not in self._approved:
            target = Target.of(run)
            for there in self._targets:
                refuse_other_target(self._output, there, target, server)
            for earlier in self._origins:
                refuse_other_weights(self._output, earlier, (run, version), server)
            # Runs of one session must agree, too, before any of their captures is here.
            self._targets = [target]
            self._origins.append((run, version))
            self._approved.add((arrival.run, version))
            self.target = target
        self._versions[arrival.run] = version
