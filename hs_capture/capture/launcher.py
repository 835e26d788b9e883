"""Start the writer process, wake it, and start another one should it die."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hs_capture.faults import FaultLog
from hs_capture.ring.producer import Producer
from hs_capture.writer.config import WriterConfig

_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from hs_capture.writer.__main__ import main; main()"
)
START_SECONDS = 30.0
LONG_LIFE_SECONDS = 10.0
FREE_RESTARTS = 10
"""So many writers in a row may die young before another one is started only after a pause."""
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 5.0

logger = logging.getLogger(__name__)


class WriterLauncher:
    """One writer process at a time, reading one ring.

    A thread sleeps until the writer dies, and starts the next one at once: what is in the ring must
    not wait for another batch, and the server must not wait for a process to start.
    """

    def __init__(
        self, producer: Producer, config: WriterConfig, environ: Mapping[str, str]
    ) -> None:
        """Prepare; `start` starts. The descriptors in `config` are filled in by `start`."""
        self._producer = producer
        self._config = config
        self._environ = environ
        # The write end of the writer's pipe, or -1 while there is no writer. A number that is
        # closed may soon be another file's, so it is used and changed under the lock alone.
        self._bell = -1
        self._lock = threading.Lock()
        self._end = -1
        self._watcher = threading.Thread(target=self._watch, name="hs-capture-watch", daemon=True)
        self._started = time.monotonic()
        self._died_young = 0
        self._faults = FaultLog(logger)
        self.lost_before = 0
        """Only writers that died knew what the ring held before this position."""

    def start(self) -> None:
        """Start a writer and return when it has detached itself; mind it from then on.

        Raises:
            OSError, subprocess.SubprocessError: it could not be started.
        """
        self._start_writer()
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        self._watcher.start()

    def wake(self) -> None:
        """Tell the writer that there is news. Should it be dead, `lost_before` is up to date."""
        with self._lock:
            if self._bell < 0:
                return
            try:
                os.write(self._bell, b"\0")
            except BlockingIOError:
                # The pipe is full of wake-ups that the writer has yet to hear.
                pass
            except BrokenPipeError:
                self.lost_before = self._producer.released

    def hang_up(self) -> None:
        """Close the pipe, as the end of this process does: the writer finishes and ends."""
        if self._end >= 0:
            os.eventfd_write(self._end, 1)
            self._watcher.join()
            os.close(self._end)
            self._end = -1
        self._close_bell()

    def _start_writer(self) -> None:
        """Start a writer.

        It is no child that anybody must wait for: the started program forks and ends. The pipe is
        its lifeline too: it reads end of file when this process is gone, however it went.
        """
        self._started = time.monotonic()
        heard, bell = os.pipe()
        try:
            os.set_blocking(bell, False)
            config = replace(self._config, ring=self._producer.descriptor, bell=heard)
            subprocess.run(
                [sys.executable, "-c", _PROGRAM, str(Path(__file__).resolve().parents[2])],
                input=config.encode(),
                pass_fds=(self._producer.descriptor, heard),
                env=dict(self._environ),
                cwd="/",
                start_new_session=True,
                check=True,
                timeout=START_SECONDS,
            )
        except BaseException:
            os.close(bell)
            raise
        finally:
            os.close(heard)
        with self._lock:
            self._bell = bell

    def _watch(self) -> None:
        """Start another writer whenever one dies, until `hang_up`.

        If it is dead by then, a last one is started all the same: it finds the ring, and the end.
        """
        ending = False
        while not ending:
            told = self._sleep()
            ending = self._end in told
            if self._bell not in told:
                continue
            with self._lock:
                self.lost_before = self._producer.released
            self._close_bell()
            while self._bell < 0:
                ending = self._ends_within(self._pause()) or ending
                self._start_another()
                if ending:
                    break

    def _sleep(self) -> dict[int, int]:
        """Sleep until the writer is dead, or has to end; return which, by descriptor."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        # Nothing is asked for: an error is always told, and that nobody reads any more is one.
        poll.register(self._bell, 0)
        return dict(poll.poll())

    def _ends_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _pause(self) -> float:
        """Return how long to wait, in seconds, before the next start.

        A start takes a moment of the processor, so writers that die again and again are started
        after longer and longer pauses; what comes meanwhile stays in the ring.
        """
        lived_long = time.monotonic() - self._started > LONG_LIFE_SECONDS
        self._died_young = 0 if lived_long else self._died_young + 1
        beyond = max(0, self._died_young - FREE_RESTARTS)
        return min(beyond * PAUSE_SECONDS, MAX_PAUSE_SECONDS)

    def _start_another(self) -> None:
        """Start a writer that goes on where the last one was."""
        self._producer.count("writer_restarts")
        try:
            self._start_writer()
        except Exception as error:
            self._producer.count("hook_errors")
            self._faults.record("the writer could not be started", error)

    def _close_bell(self) -> None:
        with self._lock:
            bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)
