"""The names of SGLang that ``lineage.py`` relies on: pools of KV slots, and prefix caches."""

from __future__ import annotations

from hs_capture.hooks.source import Attributes, Function, OneOf, Part, Spread, Where

RUNNER = "srt/model_executor/model_runner.py"
BATCH = "srt/model_executor/forward_batch_info.py"
SCHEDULE = "srt/managers/schedule_batch.py"
POOLS = "srt/mem_cache/memory_pool.py"
UNIFIED = "srt/mem_cache/unified_radix_cache.py"
RUNNER_POOLS = ("token_to_kv_pool", "req_to_token_pool")

SERVER_ARGS_FILES = ("srt/server_args.py", "srt/arg_groups/fields/*.py")
"""Where the fields of ServerArgs are: in the class, or in groups from 0.5.20 on."""


def server_args(*names: str) -> Spread:
    """Return fields of ServerArgs."""
    return Spread("ServerArgs", SERVER_ARGS_FILES, names)


CACHE_CONTRACT: tuple[Part, ...] = (
    Attributes(BATCH, "ForwardBatch", ("input_ids", "req_pool_indices", "out_cache_loc")),
    Attributes("srt/configs/model_config.py", "ModelConfig", ("is_multimodal",)),
    OneOf(
        "pools of a runner",
        (
            (Attributes(RUNNER, "ModelRunner", RUNNER_POOLS),),
            (
                Attributes(
                    "srt/model_executor/model_runner_kv_cache_mixin.py",
                    "ModelRunnerKVCacheMixin",
                    RUNNER_POOLS,
                ),
            ),
        ),
    ),
    Attributes(POOLS, "ReqToTokenPool", ("req_to_token",)),
    Attributes(POOLS, "KVCache", ("size", "page_size")),
    Attributes(POOLS, "MHATokenToKVPool", ()),
    Attributes(POOLS, "MLATokenToKVPool", ()),
    OneOf(
        "pool of a model with sparse attention",
        (
            (Attributes(POOLS, "DSATokenToKVPool", ()),),
            (Attributes(POOLS, "NSATokenToKVPool", ()),),
        ),
    ),
    OneOf(
        "prefix cache of a batch",
        (
            (
                Function(BATCH, "ForwardBatch.init_new", annotated=(("batch", "ScheduleBatch"),)),
                Attributes(SCHEDULE, "ScheduleBatch", ("reqs", "tree_cache")),
            ),
            (
                Attributes(SCHEDULE, "Req", ("last_node",)),
                Attributes("srt/mem_cache/radix_cache.py", "TreeNode", ()),
            ),
        ),
    ),
    OneOf(
        "plain prefix cache",
        (
            (Attributes(UNIFIED, "UnifiedRadixCache", ("cache_controller",)),),
            (Attributes("srt/mem_cache/radix_cache.py", "RadixCache", ()),),
        ),
    ),
    Where(
        Attributes("srt/mem_cache/unified_cache/unified_cache_linker.py", "UnifiedCacheLinker", ()),
        (Attributes(UNIFIED, "UnifiedRadixCache", ("linker",)),),
    ),
    server_args(
        *("disable_radix_cache", "enable_hierarchical_cache", "enable_lmcache"),
        *("enable_hisparse", "speculative_algorithm"),
    ),
    Where(
        Function("srt/mem_cache/registry.py", "get_radix_cache_factory"),
        (server_args("radix_cache_backend"),),
    ),
    Where(
        Attributes("srt/mem_cache/storage/flexkv/flexkv_radix_cache.py", "FlexKVRadixCache", ()),
        (server_args("enable_flexkv"),),
    ),
    Where(
        Attributes("srt/mem_cache/unified_memory_pool.py", "UnifiedMHATokenToKVPool", ()),
        (server_args("enable_unified_memory", "dcp_size"),),
    ),
)
