"""``python -m hs_capture.writer``: started by the server's plugin, never by hand.

The configuration comes on standard input. The process forks once more and lets its parent exit, so
that it is no descendant of the server: SGLang kills all of those when it stops.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from contextlib import suppress

from hs_capture.writer.config import WriterConfig
from hs_capture.writer.process import Writer

NICENESS = 5
SWITCH_SECONDS = 0.0003
"""How long a thread may keep Python's lock from others that wait for it. In Python's own 5 ms a
thread compresses several blocks: see docs/performance.md for what that costs."""


def main() -> None:
    """Detach from the server, then write until it is gone."""
    config = WriterConfig.decode(sys.stdin.buffer.read())
    # Before the fork, so that the writer is as it shall be when the server hears that it is there.
    # A service manager signals every process of a server. This one ends when the server has.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Every open request is an open file.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(NICENESS)
    sys.setswitchinterval(SWITCH_SECONDS)
    # SGLang may have pinned its scheduler to a few cores, which the writer would inherit: it would
    # compress where the scheduler runs, and nowhere else. Cores outside its cpuset stay forbidden.
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    if os.fork():
        os._exit(0)
    logging.basicConfig(format="%(message)s")
    Writer(config).run()


if __name__ == "__main__":
    main()
