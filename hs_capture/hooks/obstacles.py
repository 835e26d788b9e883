"""Server settings with which captured rows would be wrong or would not come.

Facts are from SGLang's source, read for each release; see ``compat``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hs_capture.errors import ConfigError
from hs_capture.hooks.families import DEEPSEEK_V2
from hs_capture.settings import BLOCK_TIMEOUT


@dataclass(frozen=True)
class Host:
    """What of a server decides whether captured rows are right.

    Attributes:
        args: SGLang's ServerArgs.
        layers_hand_out_states: whether a layer of a DeepSeek-V2 hands out its own complete input;
            else the model adds up two terms.
        compiles_prefill: see `compiles_prefill`.
        decode_backend: see `decode_backend`.
    """

    args: Any
    layers_hand_out_states: bool
    compiles_prefill: bool
    decode_backend: str = "disabled"

    @classmethod
    def of(cls, server_args: Any) -> Host:
        """Look at the SGLang of this process."""
        hand_out_states = DEEPSEEK_V2.layers_hand_out_states()
        return cls(
            server_args,
            hand_out_states,
            compiles_prefill(server_args),
            decode_backend(server_args),
        )

    def is_on(self, *names: str) -> bool:
        """Whether one of these options is there and switched on."""
        return any(getattr(self.args, name, None) for name in names)

    def size(self, name: str) -> int:
        """Return how many ranks an option asks for; 1 if there is no such option."""
        return getattr(self.args, name, None) or 1


@dataclass(frozen=True)
class Obstacle:
    """A server setting with which captured rows would be wrong or would not come."""

    present: Callable[[Host], bool]
    text: str


OBSTACLES = (
    Obstacle(
        lambda host: host.is_on("enable_two_batch_overlap"),
        "--enable-two-batch-overlap does not hand out layer outputs; start the server without it",
    ),
    Obstacle(
        lambda host: host.is_on("enable_attn_tp_input_scattered"),
        "--enable-attn-tp-input-scattered leaves each rank a part of the rows; "
        "start the server without it",
    ),
    Obstacle(
        lambda host: host.is_on("enable_layernorm_sp"),
        "--enable-layernorm-sp leaves each rank a part of the rows; start the server without it",
    ),
    Obstacle(
        lambda host: (
            host.is_on(
                "enable_prefill_cp",
                "enable_prefill_context_parallel",
                "enable_dsa_prefill_context_parallel",
                "enable_nsa_prefill_context_parallel",
            )
            or host.size("attn_cp_size") > 1
        ),
        "context parallelism (--enable-prefill-cp and its older names, --attn-cp-size) leaves each "
        "rank a part of the rows; start the server without it",
    ),
    Obstacle(
        lambda host: getattr(host.args, "disaggregation_mode", "null") == "decode",
        "a decode server of a disaggregated pair prefills nothing; capture on the prefill server",
    ),
    Obstacle(
        lambda host: (
            not host.layers_hand_out_states
            and host.size("tp_size") > 1
            and host.is_on("enable_flashinfer_allreduce_fusion", "enable_aiter_allreduce_fusion")
        ),
        "all-reduce fusion is on, with which SGLang up to 0.5.13 takes the states of a layer "
        "before they are summed over the ranks; start the server with "
        "--enforce-disable-flashinfer-allreduce-fusion and without "
        "--enable-aiter-allreduce-fusion, or upgrade SGLang to 0.5.14 or newer",
    ),
    Obstacle(
        lambda host: host.is_on("is_embedding"),
        "an embedding server (--is-embedding) has no logits, with which the states are taken; "
        "start the server without it",
    ),
    Obstacle(
        lambda host: host.is_on("enable_pdmux"),
        "--enable-pdmux prefills layer by layer and hands out no states; "
        "start the server without it",
    ),
    Obstacle(
        lambda host: host.compiles_prefill,
        "SGLang is about to compile prefill (piecewise CUDA graphs), which fails on a model that "
        "is being captured; start the server with --disable-prefill-cuda-graph (SGLang 0.5.14 and "
        "newer) or --disable-piecewise-cuda-graph (up to 0.5.13)",
    ),
)


OTHERS_OBSTACLES = (
    Obstacle(
        lambda host: host.is_on("enable_dp_attention"),
        "--enable-dp-attention was tested with the DeepSeek-V2 family alone; "
        "start the server of another model without it",
    ),
    Obstacle(
        lambda host: (
            getattr(host.args, "moe_a2a_backend", None) not in {None, "none"}
            or host.size("ep_size") > 1
            or getattr(host.args, "moe_dense_tp_size", None) is not None
        ),
        "expert parallelism (--moe-a2a-backend, --ep-size, --moe-dense-tp-size) was tested with no "
        "other models than those of the DeepSeek-V2 family; start the server of one without it",
    ),
    Obstacle(
        lambda host: host.is_on("rl_on_policy_target"),
        "--rl-on-policy-target gives some models a residual stream in another dtype; "
        "start the server of a model that is not of the DeepSeek-V2 family without it",
    ),
)
"""Those that count for models of other families than DeepSeek-V2's."""


def require_no_obstacle(host: Host, obstacles: tuple[Obstacle, ...] = OBSTACLES) -> None:
    """Check the server's settings.

    Raises:
        ConfigError: some make correct capture impossible; all of them are named.
    """
    found = [obstacle.text for obstacle in obstacles if obstacle.present(host)]
    if found:
        raise ConfigError("; ".join(found))


HEALTH_SECONDS = 20
"""After so long without a token of any request SGLang's ``/health`` fails (http_server.py;
SGLANG_HEALTH_CHECK_TIMEOUT)."""


def require_patience(server_args: Any, seconds: float) -> tuple[str, ...]:
    """Check that a forward pass may be held up for `seconds`; return notes for run.json.

    SGLang's watchdog ends a server whose passes do not go on for ``--watchdog-timeout``. A third of
    it is for rows that are taken, a third for word of others that are lost, and one is left for
    the pass itself. A health check may meet the end of a pass that is held up, the
    next one, and the one after it, which is launched before the answer is sent.

    Raises:
        ConfigError: it may not.
    """
    allowed = getattr(server_args, "watchdog_timeout", None)
    if allowed is not None and seconds > allowed / 3:
        raise ConfigError(
            f"{BLOCK_TIMEOUT}={seconds:g}: SGLang's watchdog would end a server that is held up "
            f"for so long; set at most a third of --watchdog-timeout, which is {allowed:g} seconds"
        )
    note = (
        f"{BLOCK_TIMEOUT}={seconds:g}: while the ring is full SGLang's /health may fail, which "
        f"waits {HEALTH_SECONDS} seconds; a quarter of that is safe"
    )
    return (note,) if seconds > HEALTH_SECONDS / 4 else ()


def compiles_prefill(server_args: Any) -> bool:
    """Whether SGLang compiles the forward of the model's class for prefill.

    It does so in one whole graph (``fullgraph``), in which torch cannot trace a wrapper.
    """
    try:
        from sglang.srt.model_executor.cuda_graph_config import check_cuda_graph_backend
    except ImportError:
        return not server_args.disable_piecewise_cuda_graph
    return bool(check_cuda_graph_backend("prefill", "tc_piecewise"))


def decode_backend(server_args: Any) -> str:
    """Return in what kind of CUDA graphs SGLang decodes: "full", "disabled" or "another".

    A device without CUDA graphs may have any.
    """
    try:
        from sglang.srt.model_executor.cuda_graph_config import check_cuda_graph_backend
    except ImportError:
        return "disabled" if server_args.disable_cuda_graph else "full"
    for backend in ("full", "disabled"):
        if check_cuda_graph_backend("decode", backend):
            return backend
    return "another"
