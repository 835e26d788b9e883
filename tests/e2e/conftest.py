"""The end-to-end tests have the fixtures of all tests with real servers."""

from __future__ import annotations

from harness.fixtures import (
    dump_dir,
    model,
    new_log,
    pytest_runtest_makereport,
    python_without_us,
    reference,
    serve,
    spawner,
    zygote,
)

__all__ = [
    "dump_dir",
    "model",
    "new_log",
    "pytest_runtest_makereport",
    "python_without_us",
    "reference",
    "serve",
    "spawner",
    "zygote",
]
