"""A server with ``--enable-metrics`` shows our counters beside its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.captures import status, wait_for, wait_until
from harness.client import RefusedError, generate_batch, get
from harness.launching import Zygote
from harness.prompts import prompt
from harness.server import Serve, Server, ServerConfig
from hs_capture.format.counters import COUNTERS
from hs_capture.hooks.metrics import metric_name

LENGTHS = [40, 17, 33, 5]
_LINE = re.compile(r'(hs_capture:\w+)\{model_name="([^"]*)",rank="([^"]*)"\} (\S+)')


def _metrics(server: Server) -> dict[str, float]:
    """Our metrics by name, all of one model and rank."""
    text = get(f"{server.url}/metrics").decode()
    assert "sglang:" in text
    found = _LINE.findall(text)
    ours = (str(server.config.model), "dp0-pp0-tp0")
    assert {(model, rank) for _, model, rank, _ in found} <= {ours}
    return {name: float(value) for name, _, _, value in found}


def _in_metrics(counters: dict[str, int]) -> dict[str, float]:
    """The counters of a status file as `/metrics` has them."""
    return {
        metric_name(name): value / 1e6 if name.endswith("_microseconds") else value
        for name, value in counters.items()
    }


def test_the_metrics_are_the_counters_of_the_status_file(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> None:
    dump_dir = tmp_path / "dump"
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    prompts = {f"row-{i}": prompt(i, length) for i, length in enumerate(LENGTHS)}
    config = ServerConfig(model, environment, arguments=["--enable-metrics"])
    with serve(zygote, config) as server:
        generate_batch(server.url, prompts)
        wait_for(dump_dir, prompts)

        def both() -> tuple[dict[str, float], dict[str, float]]:
            return _metrics(server), _in_metrics(status(dump_dir)["counters"])

        # Each is brought up to date once a second.
        seen, told = wait_until(
            both,
            lambda pair: (
                pair[0].get("hs_capture:captures_total") == 4
                and pair[0] == pytest.approx(pair[1], rel=1e-9)
            ),
        )
    assert set(seen) == set(map(metric_name, COUNTERS))
    assert seen["hs_capture:tokens_total"] == seen["hs_capture:rows_taken_total"] == sum(LENGTHS)
    assert seen["hs_capture:raw_bytes_total"] == seen["hs_capture:taken_bytes_total"] > 0
    assert seen["hs_capture:open_records"] == seen["hs_capture:queued_bytes"] == 0
    for time in ("hook", "copy", "compress", "write"):
        assert seen[f"hs_capture:{time}_seconds_total"] > 0
    assert seen["hs_capture:hook_seconds_total"] > seen["hs_capture:copy_seconds_total"]
    assert told["hs_capture:hook_errors_total"] == 0


def test_a_server_without_metrics_captures_all_the_same(
    serve: Serve, zygote: Zygote, model: Path, tmp_path: Path
) -> None:
    dump_dir = tmp_path / "dump"
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    with serve(zygote, ServerConfig(model, environment)) as server:
        generate_batch(server.url, {"one": prompt(1, 20)})
        assert wait_for(dump_dir, ["one"])["one"].complete
        with pytest.raises(RefusedError, match="404"):
            get(f"{server.url}/metrics")
