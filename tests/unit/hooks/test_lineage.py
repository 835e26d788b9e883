"""What of SGLang's caches is followed, from stand-ins with its names; what is not, is said."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hs_capture.capture.batch import Batch, CachedPrefix, Request, batch_of
from hs_capture.hooks.lineage import FILLED_OR_MOVED, Lineage, obstacle

PAGE = 4
SIZE = 60
POOL = "sglang.srt.mem_cache.memory_pool"
RADIX = "sglang.srt.mem_cache.radix_cache"


def of_type(module: str, name: str, **attributes: Any) -> Any:
    """An object of a class of this name in this module."""
    made = type(name, (), {"__module__": module})()
    for key, value in attributes.items():
        setattr(made, key, value)
    return made


def pool(name: str = "MLATokenToKVPool", module: str = POOL, size: int = SIZE) -> Any:
    return of_type(module, name, size=size, page_size=PAGE)


class Served:
    """A runner, and the notes that were made of it."""

    def __init__(self, kv: Any = None, *, multimodal: bool = False, **options: Any) -> None:
        self.notes: list[str] = []
        self.runner = SimpleNamespace(
            server_args=SimpleNamespace(**{"disable_radix_cache": False, **options}),
            token_to_kv_pool=kv or pool(),
            req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(3, 40, dtype=torch.int32)),
            model_config=SimpleNamespace(is_multimodal=multimodal),
        )
        self.lineage = Lineage(self.runner, self.notes.append)

    def judge(self, tree: Any = None) -> None:
        self.lineage.judge(
            SimpleNamespace(reqs=[object()], tree_cache=tree or of_type(RADIX, "RadixCache"))
        )

    def run(
        self,
        place: int,
        first: int,
        batch: Batch | None,
        count: int,
        ids: Any = None,
        mode: str = "EXTEND",
    ) -> Any:
        """A pass of one request: its row of the table of slots, and where it begins to write."""
        slots = self.runner.req_to_token_pool.req_to_token[place, first : first + count]
        return self.lineage.follow(
            SimpleNamespace(
                forward_mode=SimpleNamespace(name=mode),
                out_cache_loc=slots.to(torch.int64),
                input_ids=ids,
                req_pool_indices=torch.tensor([place]),
            ),
            batch,
        )

    def put(self, place: int, slots: list[int]) -> None:
        """Say in which slots the tokens of a request are."""
        table = self.runner.req_to_token_pool.req_to_token
        table[place, : len(slots)] = torch.tensor(slots, dtype=torch.int32)


def request(key: int, length: int) -> Request:
    return Request(key, f"r{key}", np.arange(length, dtype=np.int64) + 500, 0)


def hit(req: Request, prefix: int) -> Batch:
    batch = batch_of([(req, prefix, req.num_tokens - prefix)])
    return Batch(batch.rows, batch.total_rows, (CachedPrefix(req, 0, prefix),))


def prefilled(served: Served) -> None:
    """Request 0 has computed six tokens, which are in the slots 11 to 16."""
    served.put(0, [11, 12, 13, 14, 15, 16])
    req = request(0, 6)
    assert served.run(0, 0, batch_of([(req, 0, 6)]), 6, torch.tensor(req.input_ids)) == {}


def lineage_of_hit(served: Served) -> list[list[int]]:
    """Request 1 has the first five of them from the cache."""
    served.put(1, [11, 12, 13, 14, 15, 40, 41])
    req = request(1, 7)
    rows = served.run(1, 5, hit(req, 5), 2, torch.tensor(req.input_ids[5:]))
    return rows[1].tolist() if rows else []


WHOLE = [[i, 500 + i] for i in range(5)]
"""Key 0, positions 0 to 4, and the tokens of these."""


@pytest.mark.parametrize(
    "name", ["MHATokenToKVPool", "MLATokenToKVPool", "DSATokenToKVPool", "NSATokenToKVPool"]
)
def test_the_lineage_of_a_prefix_comes_with_the_first_pass(name: str) -> None:
    served = Served(pool(name))
    served.judge()
    prefilled(served)
    assert lineage_of_hit(served) == WHOLE
    assert served.notes == []


@pytest.mark.parametrize(
    "tree",
    [
        of_type(RADIX, "RadixCache"),
        of_type("sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache", linker=None),
        of_type(
            "sglang.srt.session.streaming_session",
            "StreamingSession",
            inner=of_type(RADIX, "RadixCache"),
        ),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_plain_caches_are_followed(tree: Any) -> None:
    served = Served()
    served.judge(tree)
    prefilled(served)
    assert lineage_of_hit(served) == WHOLE


def test_a_batch_that_knows_no_cache_is_judged_by_the_nodes_of_its_requests() -> None:
    """As up to 0.5.12."""
    for module, followed in ((RADIX, True), ("sglang.srt.mem_cache.radix_cache_cpp", False)):
        served = Served()
        served.lineage.judge(
            SimpleNamespace(reqs=[SimpleNamespace(last_node=of_type(module, "TreeNode"))])
        )
        prefilled(served)
        assert bool(lineage_of_hit(served)) is followed


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (of_type("sglang.srt.mem_cache.hiradix_cache", "HiRadixCache"), "HiRadixCache"),
        (of_type("elsewhere", "RadixCache"), "RadixCache"),
        (
            of_type(
                "sglang.srt.mem_cache.unified_radix_cache",
                "UnifiedRadixCache",
                cache_controller=object(),
            ),
            "UnifiedRadixCache with a lower tier",
        ),
        (
            of_type(
                "sglang.srt.session.streaming_session",
                "StreamingSession",
                inner=of_type("sglang.srt.mem_cache.swa_radix_cache", "SWARadixCache"),
            ),
            "SWARadixCache",
        ),
    ],
)
def test_other_caches_are_not_followed(tree: Any, said: str) -> None:
    served = Served()
    served.judge(tree)
    prefilled(served)
    assert lineage_of_hit(served) == []
    (note,) = served.notes
    assert f"a prefix cache of type {said}" in note
    assert "stay incomplete" in note


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("UnifiedMHATokenToKVPool", "sglang.srt.mem_cache.unified_memory_pool"),
        ("SWAKVPool", "sglang.srt.mem_cache.swa_memory_pool"),
        ("HybridLinearKVPool", POOL),
        ("MLATokenToKVPool", "somebody.elses"),
    ],
)
def test_other_pools_are_not_followed(name: str, module: str) -> None:
    served = Served(pool(name, module))
    served.judge()
    prefilled(served)
    assert lineage_of_hit(served) == []
    assert f"a KV cache of type {name}" in served.notes[0]


@pytest.mark.parametrize(("name", "option"), FILLED_OR_MOVED)
def test_settings_with_which_slots_are_filled_unseen_are_said_at_start(
    name: str, option: str
) -> None:
    served = Served(**{name: "on"})
    note = obstacle(served.runner.server_args)
    assert note is not None
    assert option in note
    served.judge()
    prefilled(served)
    assert lineage_of_hit(served) == []
    assert served.notes == []
    assert obstacle(Served(**{name: None}).runner.server_args) is None
    assert obstacle(Served(**{name: "on", "disable_radix_cache": True}).runner.server_args) is None


def test_kv_that_is_spread_over_ranks_is_not_followed() -> None:
    assert "--dcp-size" in str(obstacle(Served(dcp_size=2).runner.server_args))
    assert obstacle(Served(dcp_size=1).runner.server_args) is None


def test_without_a_prefix_cache_there_is_nothing_to_follow_or_to_say() -> None:
    served = Served(disable_radix_cache=True)
    served.judge(of_type("elsewhere", "ChunkCache"))
    prefilled(served)
    assert lineage_of_hit(served) == []
    assert served.notes == []


def test_a_batch_without_requests_is_not_judged() -> None:
    served = Served()
    for empty in ([], None):
        served.lineage.judge(SimpleNamespace(reqs=empty, tree_cache=None))
    served.judge()
    prefilled(served)
    assert lineage_of_hit(served) == WHOLE


def test_a_pass_that_was_never_announced_takes_its_slots_away() -> None:
    served = Served()
    served.judge()
    prefilled(served)
    served.put(2, [12, 14])
    served.run(2, 0, None, 2)
    assert lineage_of_hit(served) == [WHOLE[0], [-1, 501], WHOLE[2], [-1, 503], WHOLE[4]]


def test_a_pass_without_slots_changes_nothing() -> None:
    served = Served()
    served.judge()
    prefilled(served)
    for slots in (None, torch.empty(0, dtype=torch.int64)):
        served.lineage.follow(SimpleNamespace(out_cache_loc=slots, input_ids=None), None)
    assert lineage_of_hit(served) == WHOLE


def test_rows_of_earlier_weights_are_nobodys() -> None:
    served = Served()
    served.judge()
    prefilled(served)
    served.lineage.forget()
    assert [row[0] for row in lineage_of_hit(served)] == [-1] * 5
    prefilled(served)
    assert lineage_of_hit(served) == WHOLE


def test_of_images_the_ids_of_the_prompt_count() -> None:
    """In the batch stand hashes, or nothing."""
    served = Served(multimodal=True)
    served.judge()
    served.put(0, [11, 12, 13, 14, 15, 16])
    req = request(0, 6)
    hashed = torch.tensor([500, 99991, 99992, 503, 504, 505])
    served.run(0, 0, batch_of([(req, 0, 6)]), 6, hashed)
    assert lineage_of_hit(served) == WHOLE


def test_of_images_what_is_generated_has_its_own_ids() -> None:
    """In decode; in a mixed batch it is not known which of them are hashes."""
    served = Served(multimodal=True)
    served.judge()
    served.put(0, [11, 12, 13, 14, 15])
    req = replace(request(0, 2), generated=[502, 503, 504])
    served.run(0, 0, batch_of([(req, 0, 2)]), 2, torch.tensor([99990, 99991]))
    served.run(0, 2, batch_of([(req, 2, 1)]), 1, torch.tensor([502]), "DECODE")
    served.run(0, 3, batch_of([(req, 3, 1)]), 1, torch.tensor([503]), "DECODE")
    served.run(0, 4, batch_of([(req, 4, 1)]), 1, torch.tensor([504]), "MIXED")
    assert lineage_of_hit(served) == [*WHOLE[:4], [-1, -1]]
    assert served.notes == []


def test_after_an_error_nothing_is_followed_any_more() -> None:
    """A write that was not seen would leave a slot with another row's name."""
    served = Served()
    served.judge()
    prefilled(served)
    served.put(1, [11, 12])
    with pytest.raises(ValueError, match="7 rows of a pass go to 2 slots"):
        served.run(1, 0, batch_of([(request(1, 7), 0, 7)]), 2)
    assert lineage_of_hit(served) == []
    assert "after an error" in served.notes[0]


def test_a_kv_cache_that_was_made_anew_is_not_followed() -> None:
    served = Served()
    served.judge()
    prefilled(served)
    served.runner.token_to_kv_pool = pool(size=SIZE + 20)
    assert lineage_of_hit(served) == []
    assert "made anew" in served.notes[0]


def test_several_new_requests_of_a_pass_have_their_own_lineage() -> None:
    served = Served()
    served.judge()
    prefilled(served)
    served.put(1, [11, 12, 13, 40])
    served.put(2, [11, 50, 51])
    a, b = request(1, 4), request(2, 3)
    rows = batch_of([(a, 3, 1), (b, 1, 2)])
    batch = Batch(rows.rows, 3, (CachedPrefix(a, 0, 3), CachedPrefix(b, 1, 1)))
    found = served.lineage.follow(
        SimpleNamespace(
            forward_mode=SimpleNamespace(name="EXTEND"),
            out_cache_loc=torch.tensor([40, 50, 51]),
            input_ids=torch.tensor([503, 501, 502]),
            req_pool_indices=torch.tensor([1, 2]),
        ),
        batch,
    )
    assert {key: rows.tolist() for key, rows in found.items()} == {1: WHOLE[:3], 2: WHOLE[:1]}
