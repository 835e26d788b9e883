"""Follows whose row each slot of SGLang's KV cache was computed with.

That is known only where every write to a slot is a forward pass of the served model. Where slots
are also filled from elsewhere (a lower tier of the cache, a transfer) or their contents are moved
(speculation, compaction), nothing is followed, and captures with a cached prefix stay incomplete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hs_capture.capture.batch import Batch
from hs_capture.capture.lineage import LineageTable
from hs_capture.hooks.compat import DECODE_MODE

logger = logging.getLogger("hs_capture")

FILLED_OR_MOVED = (
    ("enable_hierarchical_cache", "--enable-hierarchical-cache"),
    ("enable_lmcache", "--enable-lmcache"),
    ("enable_flexkv", "--enable-flexkv"),
    ("enable_unified_cache_external_linker", "--enable-unified-cache-external-linker"),
    ("radix_cache_backend", "--radix-cache-backend"),
    ("enable_hisparse", "--enable-hisparse"),
    ("enable_unified_memory", "--enable-unified-memory"),
    ("enable_kv_cache_sharding", "--enable-kv-cache-sharding"),
    ("speculative_algorithm", "--speculative-algorithm"),
)
"""Options with which slots are filled or moved unseen, as fields of ServerArgs; some came late."""

PLAIN_POOLS = frozenset(
    {
        *("MHATokenToKVPool", "MHATokenToKVPoolFP4", "MLATokenToKVPool", "MLATokenToKVPoolFP4"),
        *("NSATokenToKVPool", "DSATokenToKVPool"),
    }
)
"""Pools with one slot a token, which stays where it is (DSA was called NSA up to 0.5.12)."""
POOL_MODULE = "sglang.srt.mem_cache.memory_pool"

PLAIN_CACHES = frozenset(
    {
        *("sglang.srt.mem_cache.radix_cache", "sglang.srt.mem_cache.unified_radix_cache"),
        *("sglang.srt.mem_cache.session_aware_cache", "sglang.srt.session.streaming_session"),
    }
)
"""Modules of prefix caches, and of what their nodes are, that hold no more than slots."""


def obstacle(server_args: Any) -> str | None:
    """Why captures cannot be linked with these settings, as a note for run.json; None if they can.

    It is no obstacle if there is no prefix cache at all: then there is nothing to link.
    """
    if server_args.disable_radix_cache:
        return None
    found = [option for name, option in FILLED_OR_MOVED if getattr(server_args, name, None)]
    if (getattr(server_args, "dcp_size", None) or 1) > 1:
        found.append("--dcp-size")
    return _note(f"with {', '.join(found)}") if found else None


class Lineage:
    """The lineage of the slots of one runner. What it cannot follow rightly it gives up."""

    def __init__(self, runner: Any, tell: Callable[[str], None]) -> None:
        """`tell` is given a note when it turns out later that nothing can be followed."""
        self._runner = runner
        self._tell = tell
        self._table: LineageTable | None = None
        self._judged = False
        self._stale = False
        args = runner.server_args
        self._over = bool(args.disable_radix_cache) or obstacle(args) is not None

    def judge(self, schedule_batch: Any) -> None:
        """Look at the prefix cache that this first batch was made with, and begin if it is plain.

        To be called for each batch that is prepared; all but the first with requests do nothing.
        """
        if self._judged or self._over or not schedule_batch.reqs:
            return
        self._judged = True
        pool = self._runner.token_to_kv_pool
        strange = _strange(pool, schedule_batch)
        if strange is not None:
            self._give_up(f"with {strange}, which this hs-capture does not know")
            return
        device = self._runner.req_to_token_pool.req_to_token.device
        self._table = LineageTable(_slots(pool), device)

    def forget(self) -> None:
        """Say that the rows of the slots are of earlier weights. Takes effect with the next pass,
        on whose stream the table is kept."""
        self._stale = True

    def follow(self, forward_batch: Any, batch: Batch | None) -> Mapping[int, torch.Tensor]:
        """Note which rows of `batch` the pass writes to which slots; None for rows of nobody.

        Returns the lineage of the cached prefixes of its new requests, int64 [prefix, 2] by key.
        After an error nothing is followed any more: a write that was not seen would leave the slot
        with another row's name.
        """
        table = self._table
        if table is None:
            return {}
        try:
            return self._follow(table, forward_batch, batch)
        except BaseException:
            self._give_up("after an error, see the log")
            raise

    def _follow(
        self, table: LineageTable, forward_batch: Any, batch: Batch | None
    ) -> Mapping[int, torch.Tensor]:
        if _slots(self._runner.token_to_kv_pool) != len(table):
            self._give_up("since the KV cache was made anew")
            return {}
        if self._stale:
            table.forget()
            self._stale = False
        slots = forward_batch.out_cache_loc
        if slots is not None and len(slots):
            # Where a prompt has images, hashes of them stand in the batch for its tokens. What is
            # generated has none.
            known = (
                not self._runner.model_config.is_multimodal
                or forward_batch.forward_mode.name == DECODE_MODE
            )
            table.write(slots, batch, forward_batch.input_ids if known else None)
        if batch is None or not batch.prefixes:
            return {}
        places = forward_batch.req_pool_indices
        slots_of = self._runner.req_to_token_pool.req_to_token
        prefixes = [
            slots_of[:, : prefix.length].index_select(0, places[prefix.place : prefix.place + 1])[0]
            for prefix in batch.prefixes
        ]
        origins = table.read(torch.cat(prefixes)).split([len(prefix) for prefix in prefixes])
        return {
            prefix.request.key: rows for prefix, rows in zip(batch.prefixes, origins, strict=True)
        }

    def _give_up(self, why: str) -> None:
        self._over, self._table = True, None
        self._tell(_note(why))


def _note(why: str) -> str:
    return (
        f"{why} it is not known whose rows the prefix cache holds: captures whose prefix came from "
        "it stay incomplete"
    )


def _slots(pool: Any) -> int:
    """The numbers of slots are below this; SGLang keeps the first page for padding."""
    return int(pool.size) + int(pool.page_size)


def _strange(pool: Any, schedule_batch: Any) -> str | None:
    """What of the caches is not known to be plain, None if all is."""
    kind = type(pool)
    if kind.__module__ != POOL_MODULE or kind.__name__ not in PLAIN_POOLS:
        return f"a KV cache of type {kind.__name__}"
    # Up to 0.5.12 a batch does not know the cache, but its requests know a node of it.
    tree = getattr(schedule_batch, "tree_cache", None)
    if tree is None:
        tree = schedule_batch.reqs[0].last_node
    while tree is not None:
        if type(tree).__module__ not in PLAIN_CACHES:
            return f"a prefix cache of type {type(tree).__name__}"
        if any(getattr(tree, name, None) is not None for name in ("cache_controller", "linker")):
            return f"a prefix cache of type {type(tree).__name__} with a lower tier"
        tree = getattr(tree, "inner", None)
    return None
