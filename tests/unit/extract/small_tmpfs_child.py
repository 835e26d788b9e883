"""A server whose dump directory is a tmpfs of 32 MiB captures ten times as much; see the test.

Runs in a mount namespace of its own. `python small_tmpfs_child.py FOLDER` prints "bytes blocked":
what went through, and the microseconds for which the server was held up.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from capture_server import CaptureServer, assert_complete, prompt, wait_until
from hs_capture import open_store
from hs_capture.extract.drain import Drain

SIZE = 32 << 20
RESERVE = 8 << 20
REQUESTS = 80
TOKENS = 1200
CHUNK = 100


def _follow(drain: Drain, server: CaptureServer, ended: threading.Event) -> None:
    """Drain until the server has ended; begin when it is held up, so that it certainly is."""
    wait_until(lambda: server.counter("blocked_microseconds") > 0, "a full tmpfs")
    drain.follow(lambda: not ended.is_set())
    drain.drain()


def main(folder: Path) -> None:
    dump, output = folder / "dump", folder / "store"
    dump.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "hs-test", str(dump)]
    subprocess.run(mount, check=True)
    drain = Drain(dump, output, workers=2)
    ended = threading.Event()
    with CaptureServer(dump, reserve=RESERVE, timeout=600) as server:
        mover = threading.Thread(target=_follow, args=(drain, server, ended))
        mover.start()
        for number in range(REQUESTS):
            request = prompt(number, TOKENS)
            for start in range(0, TOKENS, CHUNK):
                server.prefill((request, start, CHUNK))
        blocked = server.counter("blocked_microseconds")
    ended.set()
    mover.join()
    store = open_store(output)
    assert len(store) == REQUESTS, len(store)
    for number in range(REQUESTS):
        (capture,) = store.captures(f"r{number}")
        assert_complete(capture, prompt(number, TOKENS))
    assert not list(dump.rglob("*.hsc"))
    print(drain.moved.stored_bytes, blocked)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
