"""Models and releases that cannot be captured rightly: the server does not start, and says why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.launching import CPU_HOST, Spawner, Zygote
from harness.linked import altered_package
from harness.refusals import refused_start, verify
from harness.server import ServerConfig
from harness.tiny_families import LLAMA, build_tiny_family

BEGINNING = "hs-capture: the server does not start: "
EXIT_CODE = "scheduler died during initialization (exit code: 78)"
NEWEST = "0.5.23"


def test_a_model_of_another_family_is_refused_by_its_class(
    zygote: Zygote, tmp_path: Path, new_log: Callable[[], Path]
) -> None:
    """The server ends with a line and the exit code of a refusal, and verify tells the same.

    The class derives from one that is captured.
    """
    phi = {**LLAMA, "architectures": ["Phi3ForCausalLM"]}
    dump_dir = tmp_path / "dump"
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    model = build_tiny_family(tmp_path / "phi", phi)
    config = ServerConfig(model, environment, arguments=["--load-format", "dummy"])
    refused = refused_start(zygote, config, new_log())
    assert refused.exit_code != 0
    assert refused.line.startswith(
        f"{BEGINNING}Phi3ForCausalLM is no model that hs-capture captures"
    )
    assert "DeepSeek V2, V3 and V3.2, Kimi-K2" in refused.line
    assert "LlamaForCausalLM, Qwen2ForCausalLM" in refused.line
    assert refused.line.endswith("unset SGLANG_HS_DUMP_DIR to serve it")
    assert EXIT_CODE in refused.log
    verified = verify(dump_dir, environment)
    assert verified.returncode == 2
    assert "Phi3ForCausalLM is no model that hs-capture captures" in verified.stdout


CHANGES = {
    # What a release after the tested ones may have done: the contract is read, and broken.
    "newer": (
        "sglang",
        "9.9.0",
        {
            "_version.py": (NEWEST, "9.9.0"),
            "srt/models/deepseek_v2.py": ("layers_to_capture", "layers_to_keep"),
        },
        ["SGLang 9.9.0 was not tested", "DeepseekV2Model.layers_to_capture", "Upgrade hs-capture"],
    ),
    # A tested release with a patch of somebody: only the wrapping itself finds out.
    "patched": (
        "sglang",
        NEWEST,
        {"srt/model_executor/forward_batch_info.py": ("def init_new(", "def make_new(")},
        ["cannot be wrapped (sglang.srt.model_executor.forward_batch_info: ", "'init_new'"],
    ),
    # Two versions of hs-capture in one environment: of two hooks of a module one is there.
    "mixed": (
        "hs_capture",
        "0.0.1",
        {"hooks/model.py": ("def around_model_forward(", "def around_forward(")},
        ["cannot be wrapped (sglang.srt.models.deepseek_v2: AttributeError"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_host_that_cannot_be_followed_is_refused(
    model: Path, tmp_path: Path, new_log: Callable[[], Path], change: str
) -> None:
    """Real SGLang but for that change, started as users start it; verify tells the same."""
    package, version, changes, said = CHANGES[change]
    site = altered_package(package, version, tmp_path / "site", changes)
    dump_dir = tmp_path / "dump"
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, [CPU_HOST, site])),
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
    }
    dump_dir.mkdir(mode=0o700)
    refused = refused_start(Spawner(), ServerConfig(model, environment), new_log())
    assert refused.exit_code != 0
    assert EXIT_CODE in refused.log
    assert refused.line.startswith(BEGINNING)
    assert [words for words in said if words not in refused.line] == []
    assert not list(dump_dir.rglob("*.hsc"))
    verified = verify(dump_dir, environment)
    assert verified.returncode == 2, verified.stdout
    assert said[0] in verified.stdout
