"""Whose rows a batch has, from stand-ins with the attributes of SGLang's requests."""

from __future__ import annotations

import gc
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hs_capture.capture.batch import Batch
from hs_capture.hooks.requests import RequestBook
from hs_capture.hooks.served_weights import ServedWeights


class Mode(Enum):
    EXTEND = auto()
    MIXED = auto()
    SPLIT_PREFILL = auto()
    DECODE = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()


class Req:
    """What the book reads of a request."""

    def __init__(self, rid: str, tokens: list[int], cached: int = 0) -> None:
        self.rid = rid
        self.origin_input_ids = tokens
        self.origin_input_ids_unpadded = tokens
        self.cached_tokens = cached
        self.to_finish: object = None
        self.input_embeds: object = None
        self.lora_id: str | None = None
        self.output_ids: list[int] = []
        self.beam_group: object = None


def batch(*extents: tuple[Req, int, int], mode: Mode = Mode.EXTEND) -> Any:
    """A scheduler's batch of (request, prefix length, extend length)."""
    return SimpleNamespace(
        forward_mode=mode,
        reqs=[req for req, _, _ in extents],
        prefix_lens=[prefix for _, prefix, _ in extents],
        extend_lens=[extend for _, _, extend in extents],
    )


def decoding(*lengths: tuple[Req, int]) -> Any:
    """A scheduler's batch of (request, tokens that it will have had behind the pass)."""
    return SimpleNamespace(
        forward_mode=Mode.DECODE,
        reqs=[req for req, _ in lengths],
        seq_lens_cpu=torch.tensor([length for _, length in lengths]),
    )


def book_of(
    pattern: str | None, weights: ServedWeights | None = None, *, follows_decode: bool = False
) -> RequestBook:
    """A book in which adapters are called by their ids in capitals."""
    return RequestBook(
        pattern, weights or ServedWeights(), str.upper, follows_decode=follows_decode
    )


def rows(snapshot: Batch) -> list[tuple[str, int, int, int]]:
    return [(r.request.rid, r.start, r.stop, r.row) for r in snapshot.rows]


def test_rows_follow_each_other_in_batch_order() -> None:
    book = book_of(None)
    a, b = Req("a", [5, 6, 7], cached=1), Req("b", [8, 9])
    snapshot = book.snapshot(batch((a, 1, 2), (b, 0, 2)))
    assert rows(snapshot) == [("a", 1, 3, 0), ("b", 0, 2, 2)]
    assert snapshot.total_rows == 4
    request = snapshot.rows[0].request
    assert request.input_ids.dtype == np.int64
    assert request.input_ids.tolist() == [5, 6, 7]
    assert (request.num_tokens, request.cached_tokens) == (3, 1)
    assert all(r.last for r in snapshot.rows)


def test_chunks_of_a_request_share_its_key_and_only_the_last_ends_it() -> None:
    book = book_of(None)
    req = Req("a", list(range(10)))
    first = book.snapshot(batch((req, 0, 6))).rows[0]
    second = book.snapshot(batch((req, 6, 4))).rows[0]
    assert first.request is second.request
    assert (first.last, second.last) == (False, True)


@pytest.mark.parametrize("mode", [Mode.EXTEND, Mode.MIXED, Mode.SPLIT_PREFILL])
def test_every_mode_that_computes_prompts_has_rows(mode: Mode) -> None:
    assert rows(book_of(None).snapshot(batch((Req("a", [1]), 0, 1), mode=mode)))


@pytest.mark.parametrize("mode", [Mode.DECODE, Mode.IDLE, Mode.TARGET_VERIFY])
def test_other_modes_have_none(mode: Mode) -> None:
    """Their batches need not even have requests with lengths."""
    stand_in = SimpleNamespace(forward_mode=mode, reqs=None, prefix_lens=None, extend_lens=None)
    assert book_of(None).snapshot(stand_in).rows == ()


def test_decode_rows_in_a_mixed_batch_are_left_out_and_counted() -> None:
    """A decoding request brings one row, which lies beyond its prompt."""
    book = book_of(None)
    decoding, new = Req("decoding", [1, 2, 3]), Req("new", [4, 5])
    snapshot = book.snapshot(batch((decoding, 5, 1), (new, 0, 2), mode=Mode.MIXED))
    assert rows(snapshot) == [("new", 0, 2, 1)]
    assert snapshot.total_rows == 3


def test_tokens_that_a_retracted_request_generated_are_left_out() -> None:
    """It is prefilled again with what it has generated; the prompt's rows are all that counts."""
    book = book_of(None)
    req, other = Req("a", [1, 2, 3]), Req("b", [1])
    assert rows(book.snapshot(batch((req, 0, 7), (other, 0, 1)))) == [
        ("a", 0, 3, 0),
        ("b", 0, 1, 7),
    ]


def test_health_checks_are_no_requests() -> None:
    book = book_of(None)
    snapshot = book.snapshot(batch((Req("HEALTH_CHECK_17", [0]), 0, 1), (Req("a", [1]), 0, 1)))
    assert rows(snapshot) == [("a", 0, 1, 1)]
    assert book.snapshot(batch((Req("HEALTH_CHECK_18", [0]), 0, 1))).rows == ()


def test_what_verify_asks_is_not_captured() -> None:
    book = book_of("*")
    asked = Req("hs-capture-verify-00112233", [5, 6])
    assert rows(book.snapshot(batch((asked, 0, 2), (Req("a", [1]), 0, 1)))) == [("a", 0, 1, 2)]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (None, ["keep-1", "KEEP-1", "other", "[x]"]),
        ("*", ["keep-1", "KEEP-1", "other", "[x]"]),
        ("keep-*", ["keep-1"]),
        ("[kK]*-?", ["keep-1", "KEEP-1"]),
        ("nothing", []),
    ],
)
def test_a_pattern_chooses_rids(pattern: str | None, wanted: list[str]) -> None:
    book = book_of(pattern)
    reqs = [Req(rid, [1]) for rid in ["keep-1", "KEEP-1", "other", "[x]"]]
    snapshot = book.snapshot(batch(*((req, 0, 1) for req in reqs)))
    assert [r.request.rid for r in snapshot.rows] == wanted
    assert snapshot.total_rows == 4


def test_a_rid_used_twice_is_two_requests() -> None:
    book = book_of(None)
    one, two = Req("same", [1, 2]), Req("same", [3])
    first = book.snapshot(batch((one, 0, 2), (two, 0, 1)))
    assert len({r.request.key for r in first.rows}) == 2
    again = book.snapshot(batch((two, 0, 1)))
    assert again.rows[0].request is first.rows[1].request


def test_gone_requests_are_named_once() -> None:
    """Only those that were wanted; a new request in the memory of an old one is a new one."""
    book = book_of("keep*")
    req, other = Req("keep", [1]), Req("other", [1])
    key = book.snapshot(batch((req, 0, 1), (other, 0, 1))).rows[0].request.key
    assert book.take_gone() == []
    del req, other
    gc.collect()
    assert book.take_gone() == [key]
    assert book.take_gone() == []
    assert book.snapshot(batch((Req("keep", [1]), 0, 1))).rows[0].request.key != key
    gc.collect()
    assert len(book.take_gone()) == 1


def test_a_refused_request_is_left_out() -> None:
    """SGLang computes one token in place of its prompt; an abort later on changes nothing."""
    book = book_of(None)
    refused, later = Req("refused", [7]), Req("later", [1, 2])
    refused.origin_input_ids = [0]
    refused.to_finish = "abort"
    assert rows(book.snapshot(batch((refused, 0, 1), (later, 0, 1)))) == [("later", 0, 1, 1)]
    later.to_finish = "abort"
    assert rows(book.snapshot(batch((later, 1, 1)))) == [("later", 1, 2, 0)]


def test_a_multimodal_prompt_keeps_its_true_ids() -> None:
    """SGLang puts hashes of images into the padded ids; where lengths differ, those count rows."""
    book = book_of(None)
    image = Req("image", [1, 777, 777, 2])
    image.origin_input_ids_unpadded = [1, 9, 9, 2]
    longer = Req("longer", [1, 777, 777, 2])
    longer.origin_input_ids_unpadded = [1, 9, 2]
    snapshot = book.snapshot(batch((image, 0, 4), (longer, 0, 4)))
    assert snapshot.rows[0].request.input_ids.tolist() == [1, 9, 9, 2]
    assert snapshot.rows[1].request.input_ids.tolist() == [1, 777, 777, 2]


def test_half_a_surrogate_pair_in_a_rid_is_spelled_out() -> None:
    """JSON from a client may hold one; it must not spoil the batch for the other requests."""
    snapshot = book_of(None).snapshot(batch((Req("a\ud800", [1]), 0, 1)))
    assert snapshot.rows[0].request.rid == "a\\ud800"


def test_embeddings_in_place_of_tokens_are_left_out() -> None:
    """SGLang makes up token ids for them."""
    embedded = Req("embedded", [1, 1, 1])
    embedded.input_embeds = [[0.0]]
    assert book_of(None).snapshot(batch((embedded, 0, 3))).rows == ()


@pytest.mark.parametrize("what", ["positional_embed_overrides", "multi_item_delimiter_indices"])
def test_states_that_do_not_follow_from_the_token_ids_are_left_out(what: str) -> None:
    """Embeddings in place of some tokens, and items that do not see one another."""
    other, plain = Req("other", [1, 2, 3]), Req("plain", [4, 5])
    setattr(other, what, [1])
    setattr(plain, what, None)
    assert rows(book_of(None).snapshot(batch((other, 0, 3), (plain, 0, 2)))) == [("plain", 0, 2, 3)]


def test_a_rid_of_any_length_is_stored_in_a_few_kilobytes() -> None:
    """Its beginning and its digest stand for it; two long ones stay apart."""
    book = book_of(None)
    reqs = [Req(9_000_000 * "x" + end, [1, 2]) for end in "ab"]
    snapshot = book.snapshot(batch(*((req, 0, 2) for req in reqs)))
    rids = [row.request.rid for row in snapshot.rows]
    assert [rid[:4096] for rid in rids] == [4096 * "x"] * 2
    assert rids[0] != rids[1]
    assert {len(rid) for rid in rids} == {4096 + len("...sha256:") + 64}


def test_a_request_with_an_adapter_has_its_name() -> None:
    book = book_of(None)
    with_adapter, without = Req("a", [1]), Req("b", [1])
    with_adapter.lora_id = "f00"
    snapshot = book.snapshot(batch((with_adapter, 0, 1), (without, 0, 1)))
    assert [row.request.lora for row in snapshot.rows] == ["F00", None]


def test_a_request_is_of_the_weights_that_serve_when_it_comes() -> None:
    weights = ServedWeights()
    book = book_of(None, weights)
    before, after = Req("before", [1, 2]), Req("after", [1])
    book.snapshot(batch((before, 0, 1)))
    weights.change()
    snapshot = book.snapshot(batch((before, 1, 1), (after, 0, 1)))
    assert [row.request.weights_version for row in snapshot.rows] == [0, 1]
    assert not any(row.request.mixes_weights for row in snapshot.rows)


def test_a_request_mixes_weights_on_a_stale_cache_and_in_the_middle_of_a_change() -> None:
    """With a cache of other weights only what takes tokens from it does."""
    weights = ServedWeights()
    book = book_of(None, weights)

    def mixes(cached: int) -> bool:
        (row,) = book.snapshot(batch((Req("r", [1, 2, 3], cached), cached, 1))).rows
        return row.request.mixes_weights

    assert not mixes(2)
    weights.begin_change()
    assert mixes(0)
    weights.change()
    assert mixes(2)
    assert not mixes(0)
    weights.stale_cache = False
    assert not mixes(2)


def test_the_cached_prefix_of_a_request_is_named_in_its_first_pass() -> None:
    book = book_of("a*")
    plain, hit, other = Req("a-0", [1, 2]), Req("a-1", [1, 2, 3, 4], cached=2), Req("b", [1, 2])
    snapshot = book.snapshot(batch((plain, 0, 2), (other, 1, 1), (hit, 2, 1)))
    (prefix,) = snapshot.prefixes
    assert (prefix.request, prefix.place, prefix.length) == (snapshot.rows[1].request, 2, 2)
    assert book.snapshot(batch((hit, 3, 1))).prefixes == ()
    # As when SGLang takes it back and prefills it again.
    assert book.snapshot(batch((hit, 1, 3))).prefixes == ()
    assert book.snapshot(batch((plain, 1, 1), mode=Mode.DECODE)).prefixes == ()


def test_a_decoding_request_has_the_row_of_its_latest_token() -> None:
    """Where it is followed: it is known from its prefill. What it says is seen as it says it."""
    book = book_of("keep*", follows_decode=True)
    keep, other, strange = Req("keep", [1, 2, 3]), Req("other", [4]), Req("keep-too", [5])
    (first,) = book.snapshot(batch((keep, 0, 3), (other, 0, 1))).rows
    assert first.request.generates
    assert not first.last
    snapshot = book.snapshot(decoding((other, 2), (strange, 2), (keep, 4)))
    assert rows(snapshot) == [("keep", 3, 4, 2)]
    assert snapshot.total_rows == 3
    assert snapshot.rows[0].request is first.request
    keep.output_ids += [7, 8]
    assert list(first.request.generated or ()) == [7, 8]
    assert book.known(keep) is first.request
    assert book.known(other) is None
    assert book.known(strange) is None


def test_generated_rows_in_a_prefill_are_kept_where_they_are_followed() -> None:
    """In a mixed batch, and of a request that was retracted."""
    book = book_of(None, follows_decode=True)
    talking, new = Req("talking", [1, 2, 3]), Req("new", [4, 5])
    book.snapshot(batch((talking, 0, 3)))
    mixed = book.snapshot(batch((new, 0, 2), (talking, 5, 1), mode=Mode.MIXED))
    assert rows(mixed) == [("new", 0, 2, 0), ("talking", 5, 6, 2)]
    assert rows(book.snapshot(batch((talking, 2, 6)))) == [("talking", 2, 8, 0)]


def test_a_beam_search_has_rows_of_its_prompt_alone() -> None:
    book = book_of(None, follows_decode=True)
    beams = Req("beams", [1, 2, 3])
    beams.beam_group = object()
    (first,) = book.snapshot(batch((beams, 0, 3))).rows
    assert first.last
    assert not first.request.generates
    assert book.snapshot(decoding((beams, 4))).rows == ()


def test_a_followed_request_is_forgotten_like_any_other() -> None:
    """Its list of tokens does not keep it."""
    book = book_of(None, follows_decode=True)
    req = Req("a", [1])
    key = book.snapshot(batch((req, 0, 1))).rows[0].request.key
    del req
    gc.collect()
    assert book.take_gone() == [key]
