"""The consumer's process of the ring tests. It serves rings that come over a socket.

For each ring it takes entries until one with the error text "end", holds up to 5 of them at a
time, releases them in a random order, and answers with what it read. Each payload is read twice,
when the entry is taken and right before it is released: space must not be used again in between.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from hashlib import sha256

from hs_capture.ring.consumer import Consumer, Entry


def consume(ring: Consumer, chance: random.Random) -> list[tuple[str, str, str]]:
    """Return (rid, digest when taken, digest before the release) in ring order."""
    taken: list[Entry] = []
    digests: dict[str, tuple[str, str]] = {}
    waiting: list[Entry] = []
    while not (taken and taken[-1].message.error == "end"):
        for entry in ring.entries():
            taken.append(entry)
            waiting.append(entry)
            digests[name(entry)] = (digest(entry), "")
            while len(waiting) > chance.randrange(6):
                release(ring, waiting.pop(chance.randrange(len(waiting))), digests)
        if waiting:
            release(ring, waiting.pop(), digests)
        time.sleep(0)
    while waiting:
        release(ring, waiting.pop(), digests)
    assert ring.drained
    return [(name(entry), *digests[name(entry)]) for entry in taken]


def release(ring: Consumer, entry: Entry, digests: dict[str, tuple[str, str]]) -> None:
    """Release `entry` after a second look at its payload."""
    digests[name(entry)] = (digests[name(entry)][0], digest(entry))
    ring.release(entry)


def name(entry: Entry) -> str:
    """The rid in the entry, or its error text."""
    return entry.message.opened[0].rid if entry.message.opened else entry.message.error or ""


def digest(entry: Entry) -> str:
    """A digest of the payload."""
    return sha256(entry.payload).hexdigest()


def main() -> None:
    """Serve until the other side closes the socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        seed, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
        if not descriptors:
            return
        ring = Consumer(descriptors[0])
        os.close(descriptors[0])
        connection.sendall(json.dumps(consume(ring, random.Random(seed))).encode() + b"\n")


if __name__ == "__main__":
    main()
