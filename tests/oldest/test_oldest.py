"""The oldest supported release: what it captures is right, and what it cannot do is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare import TOLERANCE
from harness.launching import Spawner
from harness.reference import Reference
from harness.server import Server, ServerConfig
from harness.tiny_model import build_tiny_model
from matrix import fidelity
from matrix.overlay import overlay
from matrix.releases import OLDEST

BUILD = Path(__file__).parents[2] / "build"


@pytest.fixture(scope="module")
def site() -> Path:
    """The overlay of the release; the matrix has the same."""
    return overlay(OLDEST, BUILD / "matrix" / OLDEST.sglang / "site")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def served(site: Path, model: Path, tmp_path: Path) -> ServerConfig:
    """How the release is served when all is well."""
    return fidelity.config(OLDEST, site, model, tmp_path / "dump")


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[ServerConfig], str]:
    """Start a server that must not serve, and return what it said last."""

    def refused(config: ServerConfig) -> str:
        server = Server(Spawner(), config, tmp_path / "log")
        try:
            assert server.wait_until_ended() != 0
        except TimeoutError:
            server.kill()
            raise
        server.stop()
        lines = [line for line in server.log().splitlines() if line.startswith("hs-capture:")]
        assert lines, server.log()
        return lines[-1]

    return refused


def test_the_oldest_release_captures_what_transformers_computes(
    site: Path, model: Path, tmp_path: Path
) -> None:
    """Chunks, a batch, a prefix-cache hit; layers and both final states."""
    outcome = fidelity.compare(OLDEST, site, model, Reference(model), tmp_path)
    expected = {f"layer.{layer}" for layer in OLDEST.layers} | {"final.pre_norm", "final.post_norm"}
    assert set(outcome.errors) == expected
    assert max(outcome.errors.values()) <= TOLERANCE
    assert outcome.notes == []


def test_the_embedding_is_refused(
    refusal: Callable[[ServerConfig], str], served: ServerConfig
) -> None:
    """The sum that this release takes as the state of a layer is not there before the first."""
    environment = {**served.environment, "SGLANG_HS_LAYERS": "-1,3"}
    line = refusal(replace(served, environment=environment))
    assert "SGLANG_HS_LAYERS: layer -1, the output of the embedding, can only be captured" in line


def test_fused_all_reduce_and_compiled_prefill_are_refused(
    refusal: Callable[[ServerConfig], str], served: ServerConfig
) -> None:
    """With two ranks the sums would be those of one; one line names both obstacles."""
    environment = {
        **served.environment,
        # Two ranks on a machine without a GPU.
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",
    }
    # The release compiles prefill unless it is told not to.
    arguments = ("--tp-size", "2", "--enable-flashinfer-allreduce-fusion")
    line = refusal(replace(served, environment=environment, arguments=arguments))
    assert "--enforce-disable-flashinfer-allreduce-fusion" in line
    assert "--disable-piecewise-cuda-graph (up to 0.5.13)" in line
