"""SGLang under Ray: its scheduler is an actor that loads no plugins, so the start-up file serves.

A real Ray of one CPU on this machine alone, and the real SGLang in its actor.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness import processes
from harness.launching import host_environment
from startup.environment import DUMP_DIR, VARIABLE

SECONDS = 900
DRIVER = """
import json, sys
import ray

ray.init(
    num_cpus=1,
    include_dashboard=False,
    object_store_memory=80 * 1024**2,
    _node_ip_address="127.0.0.1",
    _temp_dir=sys.argv[1],
)

@ray.remote(num_cpus=0)
class Actor:
    def look(self, module):
        import importlib, os, sys
        armed = [type(finder).__name__ for finder in sys.meta_path].count("_TripWire")
        importlib.import_module(module)
        from sitecustomize_shim import door
        ours = sorted(name for name in sys.modules if name.split(".")[0] == "hs_capture")
        installed = sys.modules.get("hs_capture.hooks.installed")
        return {
            "pid": os.getpid(),
            "armed": armed,
            "door": door,
            "ours": ours,
            "wrapped": installed.wrapped if installed else [],
            "broken": installed.broken if installed else {},
        }

on = Actor.remote().look.remote("sglang.srt.models.deepseek_v2")
without = {"env_vars": {"SGLANG_HS_DUMP_DIR": ""}}
off = Actor.options(runtime_env=without).remote().look.remote("sglang")
print(json.dumps({"on": ray.get(on), "off": ray.get(off)}))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def actors() -> Iterator[dict[str, Any]]:
    """What two actors saw: one with the variable of the whole Ray, one that has it unset."""
    mark = f"{processes.RUN}.{uuid.uuid4().hex}"
    environment = host_environment(
        {VARIABLE: DUMP_DIR, processes.MARK: mark, "RAY_USAGE_STATS_ENABLED": "0"}
    )
    # Ray's sockets lie in there, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="hs-ray-", dir="/tmp") as folder:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, folder],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = driver.communicate(timeout=SECONDS)
            left = processes.wait_until_gone(driver.pid, mark, 180)
        finally:
            for process in processes.of_server(driver.pid, mark):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        assert driver.returncode == 0, err
    yield {**json.loads(out.splitlines()[-1]), "driver": driver.pid}
    assert [str(process) for process in left] == []
    assert not Path(DUMP_DIR).exists()


def test_the_start_up_file_opens_in_an_actor(actors: dict[str, Any]) -> None:
    """The actor is a process of its own, and the model's functions are wrapped in it."""
    seen = actors["on"]
    assert seen["pid"] not in (actors["driver"], actors["off"]["pid"])
    assert (seen["armed"], seen["door"], seen["broken"]) == (1, "pth", {})
    module = "sglang.srt.models.deepseek_v2"
    assert {
        f"{module}.DeepseekV2ForCausalLM.__init__",
        f"{module}.DeepseekV2Model.forward",
    } <= set(seen["wrapped"])


def test_an_actor_without_the_variable_has_nothing_of_ours(actors: dict[str, Any]) -> None:
    """A runtime environment may set the variable for some actors and not for others."""
    seen = actors["off"]
    assert (seen["armed"], seen["door"], seen["ours"], seen["wrapped"]) == (0, None, [], [])
