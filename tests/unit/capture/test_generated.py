"""Generated tokens from the tensors of forward passes to captures, through a real writer."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from capture_server import (
    ROW_BYTES,
    CaptureServer,
    assert_complete,
    assert_incomplete,
    prompt,
    say,
    talk,
    truth,
    wait_until,
    whole,
)
from hs_capture.capture.batch import batch_of
from hs_capture.format.container import ContainerReader
from hs_capture.soundness import examine


@pytest.mark.parametrize("late", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_conversations_of_all_lengths(tmp_path: Path, dtype: str, late: bool) -> None:
    """Fewer rows than a block and more, with one row too many at the end, and prompts alone."""
    talks = [talk(0, 20), talk(1, 3)]
    short, none = talk(2, 9), talk(3, 1)
    with CaptureServer(
        tmp_path, dtype=dtype, late_planes=late, follows_decode=True, buffer=8 << 20
    ) as server:
        server.converse(*talks, steps=200)
        server.converse(short, steps=2)
        server.converse(none, steps=0)
        if late:
            server.wait_drained()
    store = server.store()
    assert len(store) == 4
    for request in (*talks, short, none):
        assert_complete(store[request.rid], request)
    assert store["r0"].num_tokens == 219
    assert store["r3"].num_tokens == 1
    assert [c.rid for c in store.find(whole(short))] == ["r2"]
    assert [c.rid for c in store.find(short.input_ids.tolist())] == ["r2"]
    line = next(line for line in server.index() if line.rid == "r0")
    width = ROW_BYTES // (1 if dtype == "float32" else 2)
    assert (line.rows, line.raw_bytes, line.prompt_tokens) == (219, 220 * width, 20)


def test_the_row_of_the_last_token_is_behind_those_of_the_capture(tmp_path: Path) -> None:
    """Where it ran, and as that token: a later request may have it from the cache."""
    ran, one, never, another, dropped = (talk(key, 20) for key in range(5))
    with CaptureServer(tmp_path, follows_decode=True, buffer=8 << 20) as server:
        server.converse(ran, steps=70)
        server.converse(one, steps=1)
        server.converse(never, another, dropped, steps=69, closes=False)
        for request in (never, another, dropped):
            say(request, 1)
        server.tap.finish(never, never.generated or (), None)
        server.prefill((another, 89, 1))
        assert isinstance(another.generated, list)
        server.tap.finish(another, [*another.generated[:-1], 7], None)
        server.tap.lose(batch_of([(dropped, 89, 1)]), "dropped")
        server.tap.finish(dropped, dropped.generated or (), None)
    store = server.store()
    for request in (ran, one, never, another, dropped):
        assert_complete(store[request.rid], request)
    behind = {line.rid: line.rows_behind for line in server.index()}
    assert behind == {"r0": 1, "r1": 1, "r2": 0, "r3": 0, "r4": 0}
    assert {rid: store[rid].metadata["rows_behind"] for rid in behind} == behind
    for request, length in ((ran, 89), (one, 20)):
        assert store[request.rid].num_tokens == length
        with ContainerReader(store[request.rid].file) as reader:
            assert reader.read("input_ids", length).tolist() == list(request.generated or ())[-1:]
            (row,) = reader.read("final.pre_norm", length)
            assert row.tolist() == truth(request)[length, -1].tolist()
        found = examine(store[request.rid].file)
        assert found is not None
        assert found.problem is None


def test_a_row_behind_goes_with_the_block_that_reaches_beyond_it(tmp_path: Path) -> None:
    """Should an answer ever be shorter than what was decoded of it: the file holds what it says."""
    request = talk(0, 20)
    with CaptureServer(tmp_path, follows_decode=True, buffer=8 << 20) as server:
        server.converse(request, steps=290, closes=False)
        assert isinstance(request.generated, list)
        del request.generated[200:]
        server.tap.finish(request, request.generated, None)
    capture = server.store()["r0"]
    ((start, stop),) = capture.missing
    assert 20 <= start < stop == capture.num_tokens == 219
    assert_incomplete(capture, request, "retracted", [(start, 219)])
    assert capture.metadata["rows_behind"] == 0
    found = examine(capture.file)
    assert found is not None
    assert found.problem is None


def test_an_ended_conversation_is_published_while_the_server_idles(tmp_path: Path) -> None:
    request = talk(0, 5)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.converse(request, steps=4)
        wait_until(lambda: len(server.index()) == 1, "the capture")
        assert_complete(server.store()["r0"], request)


def test_a_token_after_the_end_is_not_taken(tmp_path: Path) -> None:
    """The scheduler may have started another pass; an end that is said twice is one end."""
    request = talk(0, 5)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.converse(request, steps=4)
        server.tap.finish(request, request.generated or (), None)
        server.prefill((request, 9, 1))
        server.tap.forget([request.key])
    assert_complete(server.store()["r0"], request)
    assert len(server.index()) == 1


@pytest.mark.parametrize("how", ["vanished", "weights", "stopped"])
def test_a_conversation_that_is_cut_is_complete_as_far_as_it_went(tmp_path: Path, how: str) -> None:
    """It has the tokens that were certainly its own: those that another one followed."""
    request = talk(0, 20)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.converse(request, steps=31, closes=False)
        if how == "vanished":
            server.tap.forget([request.key])
        elif how == "weights":
            server.tap.break_off("weights_changed")
            server.prefill((request, 51, 1))
    (line,) = server.index()
    assert (line.num_tokens, line.complete) == (50, True)
    assert_complete(server.store()["r0"], request)


def test_rows_of_an_answer_that_were_dropped_are_named(tmp_path: Path) -> None:
    """The ring was full for a while; the ids are known all the same."""
    request = talk(0, 20)
    with CaptureServer(tmp_path, follows_decode=True, block=False) as server:
        server.prefill((request, 0, 20))
        for number in range(40):
            say(request, 1)
            if 10 <= number < 17:
                server.tap.lose(batch_of([(request, 20 + number, 1)]), "dropped")
            elif number < 39:
                server.prefill((request, 20 + number, 1))
        server.tap.finish(request, request.generated or (), None)
    assert_incomplete(server.store()["r0"], request, "dropped", [(30, 37)])


def test_an_end_is_told_while_the_ring_is_full_and_the_server_idles(tmp_path: Path) -> None:
    """Losses of single tokens leave room for it in the share of the ring that is kept for word."""
    request, other = talk(0, 20), talk(1, 20)
    with CaptureServer(tmp_path, follows_decode=True, block=False, buffer=1 << 20) as server:
        server.converse(request, other, steps=2, closes=False)
        server.wait_drained()
        server.stop_writer()
        for number in range(2, 290):
            say(request, 1)
            say(other, 1)
            server.prefill(*((r, 20 + number, 1) for r in (request, other)))
        # What a larger ring would take far more tokens for.
        for number in range(290, 3000):
            assert isinstance(request.generated, list)
            say(request, 1)
            server.tap.lose(batch_of([(request, 20 + number, 1)]), "dropped")
        server.tap.finish(request, request.generated or (), None)
        assert server.counter("rows_dropped") > 100
        os.kill(server.writers()[0], signal.SIGCONT)
        wait_until(lambda: len(server.index()) == 1, "the capture")
        (capture,) = server.store()
        assert capture.incomplete_reason == "dropped"
        ((start, stop),) = capture.missing
        assert stop == capture.num_tokens == 3019
        assert_incomplete(capture, request, "dropped", [(start, stop)])


def test_rows_of_other_tokens_than_were_said_are_taken_back(tmp_path: Path) -> None:
    """Should SGLang ever start an answer over: no state is beside a token that it is not of."""
    early, late, prefilled = talk(0, 20), talk(1, 20), talk(2, 20)
    with CaptureServer(tmp_path, follows_decode=True, buffer=8 << 20) as server:
        for request in (early, late, prefilled):
            server.converse(request, steps=290, closes=False)
        server.wait_drained()
        for request, first in ((early, 3), (late, 288), (prefilled, 0)):
            said = list(request.generated or ())
            said[first:] = [7] * (len(said) - first)
            server.tap.finish(request, said, None)
            assert isinstance(request.generated, list)
            request.generated[:] = said
    store = server.store()
    for request, kept in ((early, 20), (late, 308), (prefilled, 20)):
        capture = store[request.rid]
        assert capture.num_tokens == 309
        ((start, stop),) = capture.missing
        # A block is taken back as a whole.
        assert stop == 309
        assert kept <= start <= kept + 3
        assert_incomplete(capture, request, "retracted", [(start, stop)])
        with ContainerReader(capture.file) as reader:
            reader.check()


def test_a_retracted_request_goes_on_where_it_was(tmp_path: Path) -> None:
    """It is prefilled again with what it has said: rows that are there stay, the others come."""
    request = talk(0, 20)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.converse(request, steps=30, closes=False)
        server.prefill((request, 0, 40))
        server.prefill((request, 40, 10))
        for number in range(30, 40):
            say(request, 1)
            server.prefill((request, 20 + number, 1))
        server.tap.finish(request, request.generated or (), None)
    assert_complete(server.store()["r0"], request)


def test_the_beginning_that_was_cached_is_missing(tmp_path: Path) -> None:
    request = talk(0, 20, cached=12)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.prefill((request, 12, 8))
        for number in range(5):
            say(request, 1)
            server.prefill((request, 20 + number, 1))
        server.tap.break_off("weights_changed")
    assert_incomplete(server.store()["r0"], request, "prefix_cache", [(0, 12)])


def test_a_writer_dies_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    """The next one has the rows that come then, and the tokens of all."""
    request, other = talk(0, 20), talk(1, 6)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.converse(request, steps=30, closes=False)
        server.wait_drained()
        server.kill_writer()
        for number in range(30, 60):
            say(request, 1)
            server.prefill((request, 20 + number, 1))
        server.tap.finish(request, request.generated or (), None)
        server.converse(other, steps=3)
    store = server.store()
    assert_incomplete(store["r0"], request, "writer_died", [(0, 50)])
    assert_complete(store["r1"], other)


def test_an_end_that_only_a_dead_writer_knew_is_told(tmp_path: Path) -> None:
    request = talk(0, 20)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.converse(request, steps=30, closes=False)
        server.wait_drained()
        server.stop_writer()
        server.tap.finish(request, request.generated or (), None)
        server.kill_writer()
    (line,) = server.index()
    assert (line.file, line.incomplete_reason, line.num_tokens) == (None, "writer_died", 49)


def test_requests_that_want_their_prompt_alone_end_with_it(tmp_path: Path) -> None:
    request = prompt(0, 20)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        server.prefill((request, 0, 20))
        wait_until(lambda: len(server.index()) == 1, "the capture")
    assert_complete(server.store()["r0"], request)


def test_a_batch_with_ids_of_another_type_is_refused(tmp_path: Path) -> None:
    request = talk(0, 4)
    with CaptureServer(tmp_path, follows_decode=True) as server:
        ids, *states = server.states((request, 0, 4))
        batch = server.prefill((talk(1, 4), 0, 4))
        with pytest.raises(ValueError, match="input_ids"):
            server.tap.capture(replace(batch, rows=()), [ids.to(torch.int32), *states])
        assert ids.dtype == torch.int64
        assert np.array_equal(ids[:, 0].numpy(), request.input_ids)
