"""Server settings with which the rows of generated tokens would be wrong or would not come."""

from __future__ import annotations

from hs_capture.hooks.obstacles import Host, Obstacle

_OR = "or capture prompts alone (SGLANG_HS_PHASES=prefill)"


def _is_disaggregated(host: Host) -> bool:
    return getattr(host.args, "disaggregation_mode", "null") == "prefill"


def _spreads_graphs(host: Host) -> bool:
    spread = host.is_on("enable_dp_attention") or host.size("pp_size") > 1
    return spread and host.decode_backend == "full"


DECODE_OBSTACLES = (
    Obstacle(
        lambda host: host.is_on("speculative_algorithm"),
        "--speculative-algorithm has the model compute guesses, most of which become no token; "
        f"to capture generated tokens start the server without it, {_OR}",
    ),
    Obstacle(
        _is_disaggregated,
        "a prefill server of a disaggregated pair (--disaggregation-mode prefill) generates "
        f"nothing; to capture generated tokens start a server without that, {_OR}",
    ),
    Obstacle(
        lambda host: host.is_on("enable_torch_compile"),
        "--enable-torch-compile compiles decoding, which capture was not tested with; to capture "
        f"generated tokens start the server without it, {_OR}",
    ),
    Obstacle(
        lambda host: host.decode_backend == "another",
        "decoding runs in CUDA graphs that capture was not tested with "
        "(--cuda-graph-backend-decode); to capture generated tokens start the server with "
        f"--cuda-graph-backend-decode full or --disable-decode-cuda-graph, {_OR}",
    ),
    Obstacle(
        _spreads_graphs,
        "decoding in CUDA graphs was tested neither with --enable-dp-attention nor with --pp-size; "
        "to capture generated tokens start the server with --disable-decode-cuda-graph "
        f"(--disable-cuda-graph up to SGLang 0.5.13), {_OR}",
    ),
)
