"""What a test must not leave behind in its own process."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


def _held() -> set[tuple[str, object]]:
    """The open files, threads, children and import finders of this process."""
    found: set[tuple[str, object]] = {("thread", thread) for thread in threading.enumerate()}
    # wrapt puts one finder of its own there when it is first used, and leaves it.
    found |= {
        ("finder", id(finder))
        for finder in sys.meta_path
        if type(finder).__module__ != "wrapt.importer"
    }
    for link in Path("/proc/self/fd").iterdir():
        # One of them lists this folder, and is closed by now.
        with suppress(FileNotFoundError):
            found.add(("file", (link.name, str(link.readlink()))))
    for children in Path("/proc/self/task").glob("*/children"):
        found |= {("process", pid) for pid in children.read_text().split()}
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test gives back what it took, and leaves no trip-wire in the import system."""
    before = _held()
    yield
    if not _held() <= before:
        # What is only waiting to be collected is not left. It takes long, so not after every test.
        gc.collect()
    left = _held() - before
    assert left == set(), f"left behind by the test: {left}"
