"""The names of SGLang that the hooks rely on, as data.

``broken`` checks them against SGLang's source. It runs over every supported release in the tests,
and at the start of a server whose SGLang is none of those.
"""

from __future__ import annotations

from pathlib import Path

from hs_capture.hooks.cache_contract import BATCH, CACHE_CONTRACT, RUNNER, SCHEDULE, server_args
from hs_capture.hooks.families import LAYER_MARK, Family
from hs_capture.hooks.finish import METHODS
from hs_capture.hooks.source import (
    Attributes,
    Constant,
    Function,
    OneOf,
    Part,
    Plain,
    Source,
    Where,
)

DEEPSEEK = "srt/models/deepseek_v2.py"
LOGITS = "srt/layers/logits_processor.py"
CONTEXT = "srt/runtime_context.py"
RANKS = "srt/distributed/parallel_state.py"
DP = "srt/layers/dp_attention.py"
GRAPHS = "srt/model_executor/cuda_graph_config.py"
DECODER = "srt/model_executor/runner/decode_cuda_graph_runner.py"
OLD_DECODER = "srt/model_executor/cuda_graph_runner.py"
MESSAGES = "srt/managers/io_struct.py"
UPDATER = "srt/managers/scheduler_components/weight_updater.py"
OLD_UPDATER = "srt/managers/scheduler_update_weights_mixin.py"
LORA = "srt/lora/lora_manager.py"


def _updates(file: str, owner: str, *names: str) -> tuple[Part, ...]:
    return tuple(Function(file, f"{owner}.{name}", ("self", "recv_req")) for name in names)


LOADS = tuple(
    f"update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc")
)

CAUSAL_LM_NAMES = ("pp_group", "config", "model", "logits_processor", "capture_aux_hidden_states")
CAUSAL_LM_FORWARD = (
    "self.capture_aux_hidden_states",
    "hidden_states, aux_hidden_states = hidden_states",
    (
        "self.logits_processor(input_ids, hidden_states, self.lm_head, forward_batch, "
        "aux_hidden_states)"
    ),
)

CONTRACT: tuple[Part, ...] = (
    # hooks/model.py
    Function(DEEPSEEK, "DeepseekV2ForCausalLM.__init__", ("self", "config")),
    Attributes(
        DEEPSEEK,
        "DeepseekV2ForCausalLM",
        CAUSAL_LM_NAMES,
    ),
    Function(DEEPSEEK, "DeepseekV2ForCausalLM.forward", contains=CAUSAL_LM_FORWARD),
    Function(
        DEEPSEEK,
        "DeepseekV2Model.forward",
        ("self", "input_ids", "positions", "forward_batch"),
        contains=("i in self.layers_to_capture", "self.norm"),
    ),
    Attributes(DEEPSEEK, "DeepseekV2Model", ("layers_to_capture", "norm", "start_layer")),
    Function(
        LOGITS,
        "LogitsProcessor.forward",
        ("self", "input_ids", "hidden_states", "lm_head", "logits_metadata", "aux_hidden_states"),
    ),
    Attributes("srt/layers/layernorm.py", "RMSNorm", ("weight", "variance_epsilon")),
    OneOf(
        "states of the layers",
        (
            # The layer hands them out when they are complete.
            (
                Function(
                    DEEPSEEK,
                    "DeepseekV2DecoderLayer.forward",
                    named=("captured_last_layer_outputs",),
                ),
            ),
            # The model adds up what it finds between two layers.
            (
                Function(
                    DEEPSEEK, "DeepseekV2Model.forward", contains=("hidden_states + residual",)
                ),
            ),
        ),
    ),
    # hooks/layers.py asks SGLang's own rule, on a stand-in that has these attributes alone.
    Function(
        DEEPSEEK,
        "DeepseekV2ForCausalLM.set_eagle3_layers_to_capture",
        ("self", "layer_ids"),
        contains=("self.model.layers_to_capture", "self.pp_group.is_last_rank"),
        reads_only=frozenset({"pp_group", "config", "model", "capture_aux_hidden_states"}),
    ),
    Where(
        Attributes("srt/speculative/spec_info.py", "SpeculativeAlgorithm", ("DFLASH",)),
        (
            Function(
                DEEPSEEK,
                "DeepseekV2ForCausalLM.set_dflash_layers_to_capture",
                ("self", "layer_ids"),
                contains=("self.model.layers_to_capture",),
            ),
        ),
    ),
    # hooks/runner.py and hooks/session.py
    Function(RUNNER, "ModelRunner.load_model", ("self",)),
    Function(RUNNER, "ModelRunner.forward", ("self", "forward_batch")),
    Attributes(RUNNER, "ModelRunner", ("is_draft_worker", "server_args", "model_config", "model")),
    Attributes("srt/configs/model_config.py", "ModelConfig", ("dtype", "context_len")),
    Function(BATCH, "ForwardBatch.init_new", ("cls", "batch", "model_runner")),
    Attributes(BATCH, "ForwardBatch", ("forward_mode",)),
    Attributes(BATCH, "ForwardMode", ("EXTEND", "MIXED", "SPLIT_PREFILL", "DECODE", "IDLE")),
    # hooks/requests.py
    Attributes(
        SCHEDULE,
        "Req",
        (
            "rid",
            "origin_input_ids",
            "origin_input_ids_unpadded",
            "cached_tokens",
            "to_finish",
            "input_embeds",
            "lora_id",
        ),
    ),
    *(
        Where(
            Attributes("srt/managers/io_struct.py", "TokenizedGenerateReqInput", (name,)),
            (Attributes(SCHEDULE, "Req", (name,)),),
        )
        for name in ("positional_embed_overrides", "multi_item_delimiter_indices")
    ),
    Plain(SCHEDULE, "Req"),
    Constant("srt/constants.py", "HEALTH_CHECK_RID_PREFIX", "HEALTH_CHECK"),
    OneOf(
        "rows of a batch",
        (
            (
                Function(BATCH, "ForwardBatch.init_new", annotated=(("batch", "ScheduleBatch"),)),
                Attributes(
                    SCHEDULE,
                    "ScheduleBatch",
                    ("reqs", "forward_mode", "prefix_lens", "extend_lens"),
                ),
            ),
            (
                Function(
                    BATCH, "ForwardBatch.init_new", annotated=(("batch", "ModelWorkerBatch"),)
                ),
                Attributes(
                    SCHEDULE,
                    "ModelWorkerBatch",
                    ("reqs", "forward_mode", "extend_prefix_lens", "extend_seq_lens"),
                ),
            ),
        ),
    ),
    Attributes(RUNNER, "ModelRunner", ("lora_manager",)),
    Attributes(LORA, "LoRAManager", ("lora_refs",)),
    Attributes("srt/lora/lora_registry.py", "LoRARef", ("lora_name",)),
    *CACHE_CONTRACT,
    # hooks/weights.py
    OneOf(
        "changes of weights",
        (
            _updates(UPDATER, "SchedulerWeightUpdaterManager", *LOADS),
            _updates(OLD_UPDATER, "SchedulerUpdateWeightsMixin", *LOADS),
        ),
    ),
    Where(
        Attributes(MESSAGES, "BeginWeightUpdateReqInput", ()),
        (
            *_updates(
                UPDATER, "SchedulerWeightUpdaterManager", "begin_weight_update", "end_weight_update"
            ),
            Attributes(MESSAGES, "EndWeightUpdateReqOutput", ("success",)),
        ),
    ),
    *(
        part
        for name in (
            *("UpdateWeightFromDisk", "UpdateWeightsFromDistributed"),
            *("UpdateWeightsFromTensor", "UpdateWeightsFromIPC"),
        )
        for part in (
            Attributes(MESSAGES, f"{name}ReqInput", ("flush_cache",)),
            Attributes(MESSAGES, f"{name}ReqOutput", ("success",)),
        )
    ),
    Function(DEEPSEEK, "DeepseekV2ForCausalLM.load_weights", ("self", "weights")),
    # hooks/compat.py
    Function(RANKS, "get_pp_group"),
    Attributes(RANKS, "GroupCoordinator", ("is_last_rank",)),
    OneOf(
        "ranks of a process",
        (
            (
                Function(CONTEXT, "get_parallel"),
                Attributes(
                    CONTEXT,
                    "ParallelContext",
                    ("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank"),
                ),
            ),
            (
                Function(RANKS, "get_tensor_model_parallel_rank"),
                Function(RANKS, "get_pipeline_model_parallel_rank"),
                Function(DP, "get_attention_tp_rank"),
                Function(DP, "get_attention_dp_rank"),
                Function(DP, "get_attention_cp_rank"),
            ),
        ),
    ),
    OneOf(
        "how prefill runs",
        (
            (
                Function(GRAPHS, "check_cuda_graph_backend", ("phase", "backend")),
                Attributes(GRAPHS, "Phase", ("PREFILL",)),
                Attributes(GRAPHS, "Backend", ("TC_PIECEWISE",)),
            ),
            (server_args("disable_piecewise_cuda_graph"),),
        ),
    ),
    server_args(
        "tp_size",
        "enable_two_batch_overlap",
        "enable_attn_tp_input_scattered",
        "attn_cp_size",
        "disaggregation_mode",
        "enable_metrics",
        "served_model_name",
        "model_path",
    ),
    OneOf(
        "context parallelism",
        ((server_args("enable_prefill_cp"),), (server_args("enable_prefill_context_parallel"),)),
    ),
    # Options that came later, each known by something else that came with it.
    Where(
        Function("srt/layers/layernorm_sp.py", "layernorm_sp_enabled"),
        (server_args("enable_layernorm_sp"),),
    ),
    Where(
        Function(DEEPSEEK, "DeepseekV2Model.forward", contains=("hidden_states + residual",)),
        (server_args("enable_flashinfer_allreduce_fusion", "enable_aiter_allreduce_fusion"),),
    ),
)


DECODE_CONTRACT: tuple[Part, ...] = (
    # hooks/requests.py and hooks/finish.py
    Attributes(SCHEDULE, "Req", ("output_ids", "finished_reason")),
    OneOf(
        "end of a request",
        tuple(
            (
                Function(
                    SCHEDULE,
                    f"Req.{name}",
                    ("self",),
                    contains=("self.finished_reason = self.to_finish",),
                ),
            )
            for name in METHODS
        ),
    ),
    Attributes(BATCH, "ForwardMode", ("DECODE",)),
    OneOf(
        "lengths of a decode batch",
        (
            (
                Function(BATCH, "ForwardBatch.init_new", annotated=(("batch", "ScheduleBatch"),)),
                Function(
                    SCHEDULE,
                    "ScheduleBatch.prepare_for_decode",
                    contains=("self.seq_lens_cpu + 1",),
                ),
            ),
            (
                Attributes(SCHEDULE, "ModelWorkerBatch", ("seq_lens_cpu",)),
                Function(
                    SCHEDULE,
                    "ScheduleBatch.prepare_for_decode",
                    contains=("self.seq_lens_cpu + 1",),
                ),
            ),
        ),
    ),
    # hooks/session.py and hooks/model.py
    Attributes(BATCH, "ForwardBatch", ("input_ids", "rids")),
    OneOf(
        "decode graphs, the largest first",
        (
            (
                Function(
                    DECODER,
                    "DecodeCudaGraphRunner._capture_one_stream",
                    contains=("reversed(self.capture_bs)",),
                ),
            ),
            (
                Function(
                    OLD_DECODER,
                    "CudaGraphRunner.capture",
                    contains=("reversed(self.capture_bs)",),
                ),
            ),
        ),
    ),
    # hooks/compat.py
    OneOf(
        "how decode runs",
        (
            (Function(GRAPHS, "check_cuda_graph_backend", ("phase", "backend")),),
            (server_args("disable_cuda_graph"),),
        ),
    ),
    # Newer releases have the option of the older ones too, so it says nothing there.
    Where(
        Function(GRAPHS, "check_cuda_graph_backend"),
        (
            Attributes(GRAPHS, "Phase", ("DECODE",)),
            Attributes(GRAPHS, "Backend", ("FULL", "DISABLED")),
        ),
    ),
    server_args(
        *("speculative_algorithm", "enable_torch_compile", "enable_dp_attention", "pp_size"),
    ),
)
"""What is relied on besides where generated tokens are captured."""


def family_contract(family: Family) -> tuple[Part, ...]:
    """Return what the hooks rely on in the models of a family other than DeepSeek-V2."""
    file = f"srt/models/{family.module}.py"
    own = (file, family.model)
    base = own
    if family.base is not None:
        base = (f"srt/models/{family.base[0]}.py", family.base[1])
    asked = (
        f"getattr(layer, '{LAYER_MARK}', False)"
        if family.marks_layers
        else "i in self.layers_to_capture"
    )
    forwards = tuple(
        (
            Function(
                place,
                f"{owner}.forward",
                ("self", "input_ids", "positions", "forward_batch"),
                contains=(asked, "self.norm"),
            ),
        )
        for place, owner in dict.fromkeys((own, base))
    )
    return (
        Function(file, f"{family.causal_lm}.__init__", ("self", "config")),
        Attributes(file, family.causal_lm, CAUSAL_LM_NAMES),
        Function(file, f"{family.causal_lm}.forward", contains=CAUSAL_LM_FORWARD),
        Function(file, f"{family.causal_lm}.load_weights", ("self", "weights")),
        Function(
            file,
            f"{family.causal_lm}.set_eagle3_layers_to_capture",
            ("self", "layer_ids"),
            contains=("self.pp_group.is_last_rank",),
            reads_only=frozenset({"pp_group", "config", "model", "capture_aux_hidden_states"}),
        ),
        OneOf(f"forward of {family.model}", forwards),
        Attributes(*base, ("layers_to_capture", "norm", "start_layer", "layers")),
        Function(file, f"{family.layer}.forward", named=(family.collector,)),
        # It completes the sums over the ranks. Layers of earlier releases have none.
        Attributes(file, family.layer, ("attn_boundary",)),
    )


def broken(root: Path, *, follows_decode: bool = False) -> list[str]:
    """Return what of the contract the SGLang in `root` does not keep; nothing if it keeps all.

    `root` is the folder of the package ``sglang``. Each entry names the file, the class and the
    name, and says what was expected. Nothing is imported.
    """
    return broken_in(Source(root), follows_decode=follows_decode)


def broken_in_family(root: Path, family: Family) -> list[str]:
    """Return what the SGLang in `root` lacks for a family other than DeepSeek-V2, as ``broken``."""
    source = Source(root)
    return [text for part in family_contract(family) for text in part.broken(source)]


def broken_in(source: Source, *, follows_decode: bool = False) -> list[str]:
    """Return what of the contract `source` does not keep, as ``broken`` does."""
    parts = CONTRACT + DECODE_CONTRACT if follows_decode else CONTRACT
    return [text for part in parts for text in part.broken(source)]
