"""Settings with which rows would be wrong, or would not come, stop the server at its start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import parallel
from harness.launching import Zygote
from harness.server import Server, ServerConfig

ATTENTION_DP = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
BEGINNING = "hs-capture: the server does not start: "


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            [*ATTENTION_DP, "--enable-two-batch-overlap"],
            "--enable-two-batch-overlap does not hand out layer outputs",
        ),
        (
            ["--tp-size", "2", "--enable-attn-tp-input-scattered"],
            "--enable-attn-tp-input-scattered leaves each rank a part of the rows",
        ),
        (["--tp-size", "2", "--attn-cp-size", "2"], "context parallelism"),
        (
            ["--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake"],
            "capture on the prefill server",
        ),
    ],
    ids=["two-batch-overlap", "scattered", "context-parallel", "decode-server"],
)
def test_the_server_does_not_start(
    zygote: Zygote,
    model: Path,
    tmp_path: Path,
    new_log: Callable[[], Path],
    arguments: list[str],
    said: str,
) -> None:
    """One line of each rank that loads the model says why, and what to do."""
    config = ServerConfig(
        model,
        {**parallel.ENVIRONMENT, "SGLANG_HS_DUMP_DIR": str(tmp_path / "dump")},
        arguments=arguments,
    )
    server = Server(zygote, config, new_log())
    try:
        exit_code = server.wait_until_ended(60)
    finally:
        server.kill()
    assert exit_code != 0
    lines = {line for line in server.log().splitlines() if line.startswith("hs-capture:")}
    (line,) = lines
    assert line.startswith(BEGINNING)
    assert said in line
    assert not list(tmp_path.rglob("*.hsc"))
