"""A server whose scheduler is an actor of Ray (``--use-ray``)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from harness.captures import run_info, wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import Mounts
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [1, 3, 4]
DRIVER = """
import sys
import ray

ray.init(
    num_cpus=4,
    num_gpus=1,  # Ray is told so; SGLang asks it for one
    include_dashboard=False,
    object_store_memory=80 * 1024**2,
    _node_ip_address="127.0.0.1",
    _temp_dir=sys.argv[1],
)
from sglang.launch_server import run_server
from sglang.srt.server_args import prepare_server_args

run_server(prepare_server_args(sys.argv[2:]))
"""


class RayLauncher:
    """Starts a Ray of its own, and the server in it."""

    def __init__(self, folder: str) -> None:
        """Ray's sockets go to `folder`; their paths must be short."""
        self._folder = folder

    def launch(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        mounts: Mounts = (),
    ) -> subprocess.Popen[bytes]:
        """See Launcher. Private mounts are not for this way of starting."""
        assert not mounts
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, self._folder, *arguments],
                cwd=log.parent,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )


@pytest.fixture
def server(serve: Serve, model: Path, dump_dir: Path) -> Iterator[Server]:
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_STAND_INS": "ray_actor",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (
        tempfile.TemporaryDirectory(prefix="hs-ray-", dir="/tmp") as folder,
        serve(RayLauncher(folder), ServerConfig(model, environment, arguments=["--use-ray"])) as up,
    ):
        yield up


def test_a_scheduler_in_an_actor_captures(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """It loads no plugins: the start-up file is the door."""
    prompts = {f"ray-{length}": prompt(length, length) for length in (1, 16, 40)}
    for rid, tokens in prompts.items():
        generate(server.url, tokens, rid)
    store = wait_for(dump_dir, prompts)
    for rid, tokens in prompts.items():
        assert_exact(store[rid], tokens, reference, LAYERS)
    assert run_info(dump_dir)["door"] == "pth"
