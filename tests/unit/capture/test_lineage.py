"""Each slot of the KV cache has the name of the row that it was written with last, or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from capture_server import CaptureServer, assert_complete, assert_incomplete, prompt
from hs_capture import open_store
from hs_capture.capture.batch import Request, batch_of
from hs_capture.capture.lineage import LineageTable

SLOTS = 64


@pytest.fixture
def table() -> LineageTable:
    return LineageTable(SLOTS, torch.device("cpu"))


def slots(*numbers: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


def names(table: LineageTable, *numbers: int) -> list[tuple[int, int, int] | None]:
    """(key, position, token) of the rows in these slots."""
    return [
        None if origin < 0 else (origin >> 32, origin & 0xFFFFFFFF, token)
        for origin, token in table.read(slots(*numbers)).tolist()
    ]


def all_of(request: Request, first: int, last: int) -> list[tuple[int, int, int]]:
    ids = request.input_ids.tolist()
    return [(request.key, i, ids[i]) for i in range(first, last)]


def test_a_new_table_has_nobodys_rows(table: LineageTable) -> None:
    assert names(table, *range(SLOTS)) == [None] * SLOTS
    assert len(table) == SLOTS


@pytest.mark.parametrize("with_tokens", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_of_a_pass_get_the_names_of_their_slots(
    table: LineageTable, with_tokens: bool, dtype: torch.dtype
) -> None:
    """Rows that are not wanted come between; slots lie anywhere."""
    a, b = prompt(3, 10), prompt(4, 5)
    batch = batch_of([(a, 2, 3), (None, 0, 2), (b, 0, 5)])
    ids = [*a.input_ids[2:5], 1, 1, *b.input_ids]
    tokens = torch.tensor(np.array(ids), dtype=dtype) if with_tokens else None
    places = [9, 4, 30, 11, 12, 63, 1, 2, 3, 40]
    table.write(slots(*places, dtype=dtype), batch, tokens)
    assert names(table, *places[:3]) == all_of(a, 2, 5)
    assert names(table, 11, 12) == [None, None]
    assert names(table, *places[5:]) == all_of(b, 0, 5)
    left = sorted({*range(SLOTS)} - {*places})
    assert names(table, *left) == [None] * len(left)


def test_the_last_to_write_a_slot_owns_it(table: LineageTable) -> None:
    a, b = prompt(0, 6), prompt(1, 6)
    table.write(slots(*range(10, 16)), batch_of([(a, 0, 6)]), None)
    table.write(slots(12, 13, 20), batch_of([(b, 1, 3)]), None)
    assert names(table, *range(10, 16)) == [
        *all_of(a, 0, 2),
        *all_of(b, 1, 3),
        *all_of(a, 4, 6),
    ]


@pytest.mark.parametrize("batch", [None, batch_of([]), batch_of([(None, 0, 2)])])
def test_a_pass_without_wanted_rows_takes_the_slots_away(
    table: LineageTable, batch: object
) -> None:
    """A decode step, a batch that was never announced, requests that are not captured."""
    a = prompt(0, 6)
    table.write(slots(*range(10, 16)), batch_of([(a, 0, 6)]), None)
    table.write(slots(11, 14), batch, None)  # type: ignore[arg-type]
    assert names(table, 11, 14) == [None, None]
    assert names(table, 10, 12, 13, 15) == [*all_of(a, 0, 1), *all_of(a, 2, 4), *all_of(a, 5, 6)]


def test_padding_takes_slots_away_and_gets_none(table: LineageTable) -> None:
    """SGLang pads with slot 0, which holds nothing; should it pad with another, that is safe."""
    a = prompt(0, 3)
    table.write(slots(5, 6, 7), batch_of([(a, 0, 3)]), None)
    table.write(slots(8, 9, 10, 0, 0, 6), batch_of([(a, 0, 3)]), torch.arange(6))
    assert names(table, 0, 5, 6, 7) == [None, all_of(a, 0, 1)[0], None, all_of(a, 2, 3)[0]]
    assert names(table, 8, 9, 10) == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]


def test_tokens_are_those_that_were_computed(table: LineageTable) -> None:
    """Should a batch be of other tokens than the request says, no link comes of it later."""
    a = prompt(1, 3)
    table.write(slots(5, 6, 7), batch_of([(a, 0, 3)]), torch.tensor([7, 8, 9]))
    assert names(table, 5, 6, 7) == [(1, 0, 7), (1, 1, 8), (1, 2, 9)]


def test_fewer_slots_than_rows_leave_no_name_behind(table: LineageTable) -> None:
    a = prompt(0, 6)
    table.write(slots(*range(10, 16)), batch_of([(a, 0, 6)]), None)
    with pytest.raises(ValueError, match="6 rows of a pass go to 2 slots"):
        table.write(slots(11, 12), batch_of([(a, 0, 6)]), None)
    assert names(table, 10, 11, 12, 13) == [(0, 0, 0), None, None, (0, 3, 3)]


def test_all_is_forgotten_when_weights_change(table: LineageTable) -> None:
    table.write(slots(*range(10, 16)), batch_of([(prompt(0, 6), 0, 6)]), None)
    table.forget()
    assert names(table, *range(SLOTS)) == [None] * SLOTS


# From the table to files, through a real writer.


def follow(server: CaptureServer, table: LineageTable, request: Request, cached: int) -> None:
    """Prefill a request whose first `cached` tokens lie in the slots of the same numbers."""
    places = torch.arange(request.num_tokens)
    batch = batch_of([(request, cached, request.num_tokens - cached)])
    table.write(places[cached:], batch, None)
    server.tap.lineage = {request.key: table.read(places[:cached])} if cached else {}
    server.prefill((request, cached, request.num_tokens - cached))
    server.tap.lineage = {}


@pytest.mark.parametrize("late_planes", [False, True])
def test_links_come_with_the_opening_of_a_request(tmp_path: Path, late_planes: bool) -> None:
    """The second has the prefix of the first; the third differs in a token and has less of it."""
    first = prompt(0, 30)
    second = Request(1, "r1", first.input_ids.copy(), 24)
    other = first.input_ids.copy()
    other[20] = 5
    third = Request(2, "r2", other, 24)
    table = LineageTable(SLOTS, torch.device("cpu"))
    with CaptureServer(tmp_path, late_planes=late_planes) as server:
        follow(server, table, first, 0)
        follow(server, table, second, 24)
        table.write(torch.arange(10, 12), None, None)
        follow(server, table, third, 24)
        server.wait_drained()
    entries = {entry.rid: entry for entry in server.index()}
    assert entries["r0"].links == ()
    assert entries["r1"].links == ((0, 24, 0),)
    assert entries["r2"].links == ((0, 10, 0), (12, 20, 0), (21, 24, 0))
    store = open_store(tmp_path)
    assert_complete(store["r0"], first)
    assert store["r1"].complete
    expected = store["r0"].aux_hidden_states((0, 24))
    assert store["r1"].aux_hidden_states((0, 24)).equal(expected)
    assert (store["r2"].missing, store["r2"].incomplete_reason) == (
        [(10, 12), (20, 21)],
        "prefix_cache",
    )


def test_a_batch_of_many_new_requests_brings_all_their_lineages(tmp_path: Path) -> None:
    """In one pass, which is several entries of the ring."""
    base = prompt(0, 40)
    table = LineageTable(SLOTS, torch.device("cpu"))
    requests = [Request(n, f"r{n}", base.input_ids.copy(), 39 - n % 7) for n in range(1, 60)]
    with CaptureServer(tmp_path) as server:
        follow(server, table, base, 0)
        lineage = table.read(torch.arange(40))
        server.tap.lineage = {r.key: lineage[: r.cached_tokens] for r in requests}
        server.prefill(*((r, r.cached_tokens, 40 - r.cached_tokens) for r in requests))
    entries = {entry.rid: entry for entry in server.index()}
    for request in requests:
        assert entries[request.rid].links == ((0, request.cached_tokens, 0),)
    assert all(capture.complete for capture in open_store(tmp_path))


def test_rows_that_are_dropped_take_the_lineage_with_them(tmp_path: Path) -> None:
    base = prompt(0, 40)
    table = LineageTable(SLOTS, torch.device("cpu"))
    with CaptureServer(tmp_path, block=False) as server:
        follow(server, table, base, 0)
        hit = Request(1, "r1", base.input_ids.copy(), 30)
        server.tap.lineage = {1: table.read(torch.arange(30))}
        server.tap.lose(batch_of([(hit, 30, 10)]), "hook_error")
    (capture,) = open_store(tmp_path).captures("r1")
    assert_incomplete(capture, hit, "hook_error", [(0, 40)])
    assert capture.metadata["links"] == []


def test_a_lineage_that_finds_no_room_is_left_out(tmp_path: Path) -> None:
    """Where the ring is small for such prompts it is captured as before, without links."""
    length = 1900
    base = prompt(0, length)
    table = LineageTable(length, torch.device("cpu"))
    with CaptureServer(tmp_path) as server:
        # Room for its token ids and a few rows.
        server.tap._budget = 40_000
        follow(server, table, base, 0)
        hit = Request(1, "r1", base.input_ids.copy(), length - 9)
        follow(server, table, hit, length - 9)
    entries = {entry.rid: entry for entry in server.index()}
    assert (entries["r1"].rows, entries["r1"].links) == (9, ())
    assert open_store(tmp_path)["r1"].incomplete_reason == "prefix_cache"
