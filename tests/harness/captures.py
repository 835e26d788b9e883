"""What a server has published: its captures, its run, and how it says it is doing."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import hs_capture

Value = TypeVar("Value")
_STATUS = "*/status-*.json"

# A capture is published after the answer was sent: the writer works beside the server, and after
# all others where the machine has much to do.
PUBLISH_SECONDS = 240.0


def wait_for(dump_dir: Path, rids: Iterable[str], seconds: float = PUBLISH_SECONDS) -> Any:
    """Return the store of ``dump_dir`` once it holds every rid, as often as it is given.

    Raises:
        TimeoutError: some are still missing after ``seconds``; the message names them.
    """
    # iter() because a Counter takes the values of a mapping for counts.
    wanted = Counter(iter(rids))
    deadline = time.monotonic() + seconds
    while True:
        store = hs_capture.open_store(dump_dir)
        missing = wanted - Counter(capture.rid for capture in store)
        if not missing:
            return store
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{missing.total()} of {wanted.total()} captures were not published in "
                f"{seconds:.0f} s, such as {sorted(missing)[:3]}; the store has {len(store)}; "
                f"status: {[path.read_text() for path in dump_dir.glob(_STATUS)]}"
            )
        time.sleep(0.1)


def run_folder(dump_dir: Path) -> Path:
    """Return the folder of the only run in ``dump_dir``."""
    (run_file,) = dump_dir.glob("*/run.json")
    return run_file.parent


def run_info(dump_dir: Path) -> dict[str, Any]:
    """Return run.json of the only run."""
    return dict(json.loads((run_folder(dump_dir) / "run.json").read_text()))


def status(dump_dir: Path) -> dict[str, Any]:
    """Return the status file of the only rank of the only run, once it is there."""
    (file,) = wait_until(lambda: [*dump_dir.glob(_STATUS)], bool)
    return dict(json.loads(file.read_text()))


def wait_until(
    look: Callable[[], Value], good: Callable[[Value], bool], seconds: float = PUBLISH_SECONDS
) -> Value:
    """Look again and again until what is seen is good, and return it.

    Raises:
        AssertionError: it did not come in time; what was seen last is said.
    """
    deadline = time.monotonic() + seconds
    while not good(seen := look()):
        assert time.monotonic() < deadline, f"not in {seconds} s; seen last: {seen}"
        time.sleep(0.1)
    return seen
