"""The releases of SGLang as the contract tests read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contract.released import unpack, wheel


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the source of a release, unpacked once."""
    folder = tmp_path_factory.mktemp("released")

    def source(version: str) -> Path:
        if not (folder / version).is_dir():
            unpack(wheel(version), folder / version)
        return folder / version / "sglang"

    return source
