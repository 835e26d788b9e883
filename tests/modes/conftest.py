"""The tests of serving modes have the fixtures of all tests with real servers."""

from __future__ import annotations

from harness.fixtures import (
    dump_dir,
    interpreting,
    model,
    new_log,
    pytest_runtest_makereport,
    reference,
    serve,
    spawner,
    zygote,
)

__all__ = [
    "dump_dir",
    "interpreting",
    "model",
    "new_log",
    "pytest_runtest_makereport",
    "reference",
    "serve",
    "spawner",
    "zygote",
]
