"""Start the writer process, wake it, and start another one should it die."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
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
    """One writer process at a time, reading one ring."""

    def __init__(
        self, producer: Producer, config: WriterConfig, environ: Mapping[str, str]
    ) -> None:
        """Prepare; `start` starts. The descriptors in `config` are filled in by `start`."""
        self._producer = producer
        self._config = config
        self._environ = environ
        self._bell = -1
        self._started = time.monotonic()
        self._died_young = 0
        self._next_start = 0.0
        self._faults = FaultLog(logger)

    def start(self) -> None:
        """Start a writer and return when it has detached itself.

        The writer is no child that anybody must wait for: the started program forks and ends. The
        pipe is its lifeline too: it reads end of file when this process is gone, however it went.

        Raises:
            OSError, subprocess.SubprocessError: it could not be started.
        """
        self._started = time.monotonic()
        bell, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        config = replace(self._config, ring=self._producer.descriptor, bell=bell)
        root = str(Path(__file__).resolve().parents[2])
        try:
            subprocess.run(
                [sys.executable, "-c", _PROGRAM, root],
                input=config.encode(),
                pass_fds=(self._producer.descriptor, bell),
                env=dict(self._environ),
                cwd="/",
                start_new_session=True,
                check=True,
                timeout=START_SECONDS,
            )
        finally:
            os.close(bell)

    def wake(self) -> bool:
        """Tell the writer that there is news; return False when there is no writer any more."""
        if self._bell < 0:
            return False
        try:
            os.write(self._bell, b"\0")
        except BlockingIOError:
            # The pipe is full of wake-ups that the writer has yet to hear.
            return True
        except BrokenPipeError:
            return False
        return True

    def restart(self) -> bool:
        """Start another writer in place of one that died; return whether there is one now.

        It goes on where that one was. Starting takes a moment, so writers that die again and again
        are started after longer and longer pauses; what comes meanwhile stays in the ring.
        """
        now = time.monotonic()
        if now < self._next_start:
            return False
        lived_long = now - self._started > LONG_LIFE_SECONDS
        self._died_young = 0 if lived_long else self._died_young + 1
        beyond = max(0, self._died_young - FREE_RESTARTS)
        self._next_start = now + min(beyond * PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        self.hang_up()
        self._producer.count("writer_restarts")
        try:
            self.start()
        except (OSError, subprocess.SubprocessError) as error:
            self._producer.count("hook_errors")
            self._faults.record("the writer could not be started", error)
            return False
        return True

    def hang_up(self) -> None:
        """Close the pipe, as the end of this process does: the writer finishes and ends."""
        if self._bell >= 0:
            # A number that is closed may soon be another file's.
            bell, self._bell = self._bell, -1
            os.close(bell)
