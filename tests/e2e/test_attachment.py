"""What a server says when the plugin is attached, and that requests are captured together."""

from __future__ import annotations

from pathlib import Path

from harness.captures import run_info, status, wait_for, wait_until
from harness.client import generate_batch
from harness.compare import assert_exact
from harness.launching import Spawner
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig

LENGTHS = [40, 1, 17, 33, 64, 5, 28, 19]
WRAPPED = [
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
    "sglang.srt.model_executor.model_runner.ModelRunner.forward",
    "sglang.srt.model_executor.model_runner.ModelRunner.load_model",
    "sglang.srt.models.deepseek_v2.DeepseekV2ForCausalLM.__init__",
    "sglang.srt.models.deepseek_v2.DeepseekV2Model.forward",
]


def test_one_line_tells_of_it_and_eight_requests_share_forward_passes(
    serve: Serve, spawner: Spawner, model: Path, tmp_path: Path, reference: Reference
) -> None:
    """Started as users start it; prompts are not cut, so fewer passes than requests ran."""
    dump_dir = tmp_path / "dump"
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_LAYERS": "-1,1,3,5",
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
    }
    prompts = {f"row-{i}": prompt(i, length) for i, length in enumerate(LENGTHS)}
    with serve(spawner, ServerConfig(model, environment, chunk=-1)) as server:
        generate_batch(server.url, prompts)
        store = wait_for(dump_dir, prompts)
        for rid, tokens in prompts.items():
            assert_exact(store[rid], tokens, reference, [-1, 1, 3, 5])
        seen = wait_until(lambda: status(dump_dir), lambda s: s["counters"].get("captures") == 8)
        assert 1 <= seen["counters"]["batches"] < len(prompts)
        lines = [line for line in server.log().splitlines() if "hs-capture " in line]
    run = run_info(dump_dir)
    (line,) = lines
    assert line.endswith(
        "attached: DeepseekV2ForCausalLM, layers -1,1,3,5, final pre_norm+post_norm, "
        f"dir {dump_dir / run['run_id']}"
    )
    assert run["door"] == "pth"
    assert sorted(run["wrapped"]) == WRAPPED
