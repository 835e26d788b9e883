"""The writer's main loop: from the bell to the status file."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hs_capture.faults import FaultLog
from hs_capture.format.run import Status
from hs_capture.ring.consumer import Consumer, Entry
from hs_capture.writer.assembler import Assembler
from hs_capture.writer.config import WriterConfig
from hs_capture.writer.leftovers import OPEN_FOLDER, hold
from hs_capture.writer.publisher import Publisher

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
SHORT_POLL_SECONDS = 0.001
"""How long to sleep while a copy from the device is on its way, or all threads have enough to do:
nobody rings when that is over."""
MOST_PENDING_BLOCKS = 1024
"""So many blocks may wait for a thread. A ring full of small records is many more: they wait in it,
where they cost nothing more."""
SPARE_INODES = 1024
"""So many of the file system's inodes are left for the captures that are under way."""
COPY_SECONDS = 1.0
"""How long to wait for such a copy after the server is gone."""
HEARTBEAT_SECONDS = 1.0
LAST_WORK_SECONDS = 10.0
"""How long the writer may work on after the server is gone; what is left then is told, not stored:
whoever stopped the server may soon kill all that it left."""


def has_room(space: os.statvfs_result, reserve: int) -> bool:
    """Whether a file system has more free than `reserve` bytes, and inodes to spare.

    One without a limit may say that it has none at all, of either, as a tmpfs does.
    """
    inodes = space.f_favail > SPARE_INODES or space.f_files == 0
    return inodes and (space.f_bavail * space.f_frsize > reserve or space.f_blocks == 0)


class Writer:
    """Takes what the server published until the server is gone and everything is stored."""

    def __init__(self, config: WriterConfig) -> None:
        """Map the ring and open the index of the run."""
        self._config = config
        self._faults = FaultLog(logger)
        self._ring = Consumer(config.ring)
        self._errors_before = self._ring.region.counters()["writer_errors"]
        self._hold = hold(Path(config.run_dir))
        self._publisher = Publisher(config, self._faults)
        # Half of them may compress at a time; the others write meanwhile.
        self._pool = ThreadPoolExecutor(2 * config.workers, thread_name_prefix="hs-capture-writer")
        self._assembler = Assembler(config, self._ring, self._publisher, self._pool, self._faults)
        self._started = time.time()
        self._server_error: str | None = None
        self._server_gone_at: float | None = None
        # Whether all that the server has published so far was taken, or some was left for later.
        self._caught_up = False
        self._busy = False

    def run(self) -> None:
        """Work until the server is gone, then finish what it left."""
        heartbeat = 0.0
        while True:
            for entry in self._take():
                if entry.message.error is not None:
                    self._server_error = entry.message.error
                self._assembler.apply(entry)
            if self._finished():
                break
            if time.monotonic() - heartbeat >= HEARTBEAT_SECONDS:
                if self._caught_up:
                    self._assembler.close_overdue()
                self._publisher.pay_owed()
                self._write_status("serving")
                heartbeat = time.monotonic()
            self._wait()
        # What is left has no room, or never arrived from the device. It is told, not stored.
        reason = "server_stopped" if self._has_room() else "file_system_full"
        if self._out_of_time:
            self._assembler.give_up(reason)
        for entry in self._ring.entries(in_place=False):
            self._assembler.renounce(entry, reason)
        self._assembler.close_all("server_stopped")
        self._pool.shutdown(wait=True)
        self._write_status("ended")
        self._publisher.close()
        self._remove_open_folder()
        os.close(self._hold)

    def _take(self) -> Iterator[Entry]:
        """Take entries while there is room for what they bring, and the threads keep up.

        Entries that are not taken stay in the ring: the ring fills up, and the server does what
        SGLANG_HS_ON_FULL says.
        """
        entries = self._ring.entries()
        self._caught_up = self._busy = False
        # What it says of an earlier look counts no more, should there be no room for one now.
        self._ring.waiting = False
        while self._has_room():
            if self._assembler.pending_blocks >= MOST_PENDING_BLOCKS:
                self._busy = True
                return
            entry = next(entries, None)
            if entry is None:
                self._caught_up = not self._ring.waiting
                return
            yield entry

    def _has_room(self) -> bool:
        """Whether more than the reserve of the file system is free, and the index can be written.

        A quota shows in the index alone: its lines are owed while they find no room.
        """
        try:
            space = os.statvfs(self._config.run_dir)
        except OSError as error:
            self._faults.record("the run directory is gone", error)
            return False
        return has_room(space, self._config.reserve_bytes) and not self._publisher.owes

    def _finished(self) -> bool:
        """Whether the server is gone and nothing is left, or nothing can be done about it."""
        if self._server_gone_at is None:
            return False
        never_comes = self._ring.waiting and self._seconds_alone > COPY_SECONDS
        return never_comes or self._out_of_time or self._ring.drained

    @property
    def _seconds_alone(self) -> float:
        """How long the server has been gone."""
        gone = self._server_gone_at
        return 0.0 if gone is None else time.monotonic() - gone

    @property
    def _out_of_time(self) -> bool:
        return self._seconds_alone > LAST_WORK_SECONDS

    def _wait(self) -> None:
        """Sleep until the server rings the bell, hangs up, or some time has passed."""
        if self._server_gone_at is not None:
            time.sleep(0.005)
            return
        poll = select.poll()
        poll.register(self._config.bell, select.POLLIN)
        seconds = SHORT_POLL_SECONDS if self._ring.waiting or self._busy else POLL_SECONDS
        if poll.poll(seconds * 1000) and not os.read(self._config.bell, 65536):
            self._server_gone_at = time.monotonic()

    def _write_status(self, state: str) -> None:
        for name, value in self._publisher.counted().items():
            self._ring.tell(name, value)
        self._ring.tell("writer_errors", self._errors_before + self._faults.count)
        self._ring.tell("open_records", self._assembler.open_records)
        status = Status(
            run_id=Path(self._config.run_dir).name,
            rank=self._config.rank,
            state=state,
            server_pid=self._config.server_pid,
            writer_pid=os.getpid(),
            started=self._started,
            heartbeat=time.time(),
            last_capture=self._publisher.last_capture,
            counters=self._ring.region.counters(),
            last_error=self._faults.last or self._server_error,
        )
        try:
            status.write(
                Path(self._config.run_dir) / f"status-{self._config.rank}.json",
                mode=self._config.file_mode,
            )
        except OSError as error:
            self._faults.record("the status file could not be written", error)

    def _remove_open_folder(self) -> None:
        folder = Path(self._config.run_dir) / OPEN_FOLDER
        try:
            folder.rmdir()
        except OSError as error:
            # Another rank of this run may still have files in it.
            logger.debug("hs-capture: %s stays: %s", folder, error)
