"""A disaggregated pair: the prefill server captures, the decode server refuses to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.captures import status, wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [-1, 0, 3, 6]
# Where requests come from whose prompt is computed and sent nowhere (disaggregation/utils.py).
NO_DECODE_SERVER = "2.2.2.2"


def _settings(dump_dir: Path) -> dict[str, str]:
    return {
        "HS_TEST_STAND_INS": "transfer_engine",
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_prefill_server_captures(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path, reference: Reference
) -> None:
    """Prompts alone and at once, cut into chunks: each is complete and exact."""
    dump_dir = tmp_path / "dump"
    arguments = [
        *("--disaggregation-mode", "prefill"),
        *("--disaggregation-transfer-backend", "nixl"),
        *("--disaggregation-bootstrap-port", str(_free_port())),
    ]
    alone = {f"alone-{length}": prompt(length, length) for length in (1, 16, 17, 70)}
    at_once = {f"at-once-{i}": prompt(100 + i, 5 + 7 * i) for i in range(8)}
    prompts = alone | at_once
    # Each request has a room of its own in which the servers of a pair would meet.
    rooms = {rid: room for room, rid in enumerate(prompts)}
    with serve(zygote, ServerConfig(model, _settings(dump_dir), arguments=arguments)) as server:

        def send(rid: str) -> dict[str, Any]:
            where = {"bootstrap_host": NO_DECODE_SERVER, "bootstrap_room": rooms[rid]}
            return generate(server.url, prompts[rid], rid, **where)

        with ThreadPoolExecutor(len(at_once)) as pool:
            answers = [*map(send, alone), *pool.map(send, at_once)]
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} == {"length"}
    store = wait_for(dump_dir, prompts)
    assert len(store) == len(prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, LAYERS)
    assert status(dump_dir)["counters"]["hook_errors"] == 0


def test_a_decode_server_refuses(
    zygote: Zygote, model: Path, tmp_path: Path, new_log: Callable[[], Path]
) -> None:
    """It would have nothing to capture: it does not start, and says where to capture."""
    arguments = ["--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake"]
    config = ServerConfig(model, _settings(tmp_path / "dump"), arguments=arguments)
    server = Server(zygote, config, new_log())
    try:
        exit_code = server.wait_until_ended()
    except TimeoutError:
        server.kill()
        raise
    server.stop()
    assert exit_code != 0
    (line,) = [line for line in server.log().splitlines() if line.startswith("hs-capture:")]
    assert "a decode server of a disaggregated pair prefills nothing" in line
    assert "capture on the prefill server" in line
    assert not list(tmp_path.rglob("*.hsc"))
