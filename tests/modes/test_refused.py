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
    _assert_refused(zygote, model, tmp_path, new_log(), arguments, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--enable-torch-compile"], "--enable-torch-compile compiles decoding"),
        (
            ["--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl"],
            "--disaggregation-mode prefill",
        ),
    ],
    ids=["compiled", "prefill-server"],
)
def test_the_server_does_not_start_where_generated_tokens_are_asked_for(
    zygote: Zygote,
    model: Path,
    tmp_path: Path,
    new_log: Callable[[], Path],
    arguments: list[str],
    said: str,
) -> None:
    """The way out is said: to capture prompts alone."""
    decode = {"SGLANG_HS_PHASES": "prefill,decode"}
    line = _assert_refused(zygote, model, tmp_path, new_log(), arguments, said, **decode)
    assert line.endswith("or capture prompts alone (SGLANG_HS_PHASES=prefill)")


def _assert_refused(
    zygote: Zygote,
    model: Path,
    folder: Path,
    log: Path,
    arguments: list[str],
    said: str,
    **environment: str,
) -> str:
    """Assert that a server with these settings ends, and return the line that says why."""
    dump = {"SGLANG_HS_DUMP_DIR": str(folder / "dump")}
    config = ServerConfig(
        model, {**parallel.ENVIRONMENT, **dump, **environment}, arguments=arguments
    )
    server = Server(zygote, config, log)
    try:
        exit_code = server.wait_until_ended(60)
    finally:
        server.kill()
    assert exit_code != 0
    lines = {line for line in server.log().splitlines() if line.startswith("hs-capture:")}
    (line,) = lines
    assert line.startswith(BEGINNING)
    assert said in line
    assert not list(folder.rglob("*.hsc"))
    return line
