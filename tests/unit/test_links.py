"""A capture has the rows of its prefix from whoever captured them, or says that it has not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capture_files import RUN, norm_weight, write_run
from hs_capture import FormatError, HiddenStatesDataset, NotCapturedError, open_store
from hs_capture.cli import main
from hs_capture.export.formats import format_named
from hs_capture.export.plan import Wish, make_plan
from hs_capture.export.run import run as export
from hs_capture.extract.drain import Drain
from hs_capture.extract.judgement import problem_of
from hs_capture.selection import select
from hs_capture.soundness import examine
from linked_captures import IDS, TRUTH, assert_whole, sources_of, write_turn


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in the dump directory ``tmp_path/dump``."""
    return write_run(tmp_path / "dump", replace(RUN, norm=norm_weight([1, 2, 3, 4])))


@pytest.fixture
def dump(run: Path) -> Path:
    return run.parent


@pytest.fixture
def chat(run: Path) -> Path:
    """Three turns; the last has the rows of both others."""
    write_turn(run, 0, 10)
    write_turn(run, 1, 18, [(0, 10, 0)])
    write_turn(run, 2, 30, [(0, 10, 0), (10, 18, 1)])
    return run


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def path_of(run: Path, key: int) -> Path:
    (path,) = run.rglob(f"{key:09d}-x.hsc")
    return path


def test_linked_rows_are_read_from_the_files_that_have_them(chat: Path, dump: Path) -> None:
    store = open_store(dump)
    for key, length, sources in (
        (0, 10, []),
        (1, 18, [(0, 10, "turn-0")]),
        (2, 30, [(0, 10, "turn-0"), (10, 18, "turn-1")]),
    ):
        capture = store[f"turn-{key}"]
        assert_whole(capture, length)
        assert sources_of(capture) == sources
    named = store["turn-2"].metadata
    assert [s["file"] for s in named["sources"]] == [str(path_of(chat, 0)), str(path_of(chat, 1))]
    assert (named["complete"], named["missing"]) == (False, [[0, 18]])
    assert repr(store["turn-2"]) == "Capture('turn-2', 30 tokens, complete)"
    # The sizes are those of the files: a prefix is stored once.
    assert [entry.rows for entry in store.entries()] == [10, 8, 12]


@pytest.mark.parametrize("rows", [(0, 0), (0, 3), (8, 12), (9, 30), (18, 30), (17, 19), (30, 30)])
def test_any_range_of_rows_is_put_together(chat: Path, dump: Path, rows: tuple[int, int]) -> None:
    capture = open_store(dump)["turn-2"]
    start, stop = rows
    found = capture.aux_hidden_states(rows, [3])
    assert found[:, 0].equal(torch.from_numpy(TRUTH["layer.3"][start:stop]))
    last = capture.last_hidden_states("pre_norm", rows)
    assert last.equal(torch.from_numpy(TRUTH["final.pre_norm"][start:stop]))
    assert capture.last_hidden_states("post_norm", rows).shape == (stop - start, 4)


def test_only_the_files_that_are_needed_are_opened(chat: Path, dump: Path) -> None:
    capture = open_store(dump)["turn-2"]
    path_of(chat, 0).unlink()
    assert len(capture.aux_hidden_states((10, 30))) == 20
    assert len(capture.input_ids) == 30
    with pytest.raises(FileNotFoundError, match=r"rid 'turn-0', which is gone; open the store"):
        capture.aux_hidden_states((9, 30))


def test_a_source_that_is_gone_makes_the_capture_incomplete_again(chat: Path, dump: Path) -> None:
    path_of(chat, 0).unlink()
    for key, missing in ((1, [(0, 10)]), (2, [(0, 10)])):
        capture = open_store(dump)[f"turn-{key}"]
        assert (capture.complete, capture.incomplete_reason) == (False, "source_gone")
        assert capture.missing == missing
        with pytest.raises(NotCapturedError, match=r"not captured \(source_gone\)"):
            capture.aux_hidden_states()
    capture = open_store(dump)["turn-2"]
    assert sources_of(capture) == [(10, 18, "turn-1")]
    assert len(capture.last_hidden_states("pre_norm", (10, 30))) == 20


def test_without_an_index_it_is_the_same(chat: Path, dump: Path) -> None:
    (chat / "index-tp0.jsonl").unlink()
    for key, length in ((0, 10), (1, 18), (2, 30)):
        assert_whole(open_store(dump)[f"turn-{key}"], length)


def test_a_source_may_be_published_after_who_needs_it(run: Path, dump: Path) -> None:
    write_turn(run, 1, 18, [(0, 10, 0)], sequence=0)
    assert open_store(dump)["turn-1"].incomplete_reason == "source_gone"
    write_turn(run, 0, 10, sequence=1)
    assert_whole(open_store(dump)["turn-1"], 18)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ({"missing": [(0, 4)], "reason": "dropped"}, [(0, 4)]),
        ({"missing": [(3, 5)], "reason": "dropped"}, [(3, 5)]),
        ({"weights_version": 1}, [(0, 10)]),
        ({"lora": "tuned"}, [(0, 10)]),
    ],
    ids=["begins-later", "has-a-hole", "other-weights", "an-adapter"],
)
def test_what_a_source_has_not_is_missing(
    run: Path, dump: Path, source: dict[str, Any], missing: list[tuple[int, int]]
) -> None:
    write_turn(run, 0, 10, **source)
    write_turn(run, 1, 18, [(0, 10, 0)])
    capture = open_store(dump)["turn-1"]
    assert (capture.missing, capture.incomplete_reason) == (missing, "source_gone")
    left = capture.aux_hidden_states((missing[0][1], 18))
    assert left[:, 0].equal(torch.from_numpy(TRUTH["layer.1"][missing[0][1] : 18]))


def test_rows_of_a_source_that_are_not_its_own_are_not_taken(run: Path, dump: Path) -> None:
    """Links name who computed the rows; there are no links to links."""
    write_turn(run, 0, 10)
    write_turn(run, 1, 18, [(0, 10, 0)])
    write_turn(run, 2, 30, [(0, 18, 1)])
    assert open_store(dump)["turn-2"].missing == [(0, 10)]


def test_a_source_shorter_than_the_link_has_what_it_has(run: Path, dump: Path) -> None:
    write_turn(run, 0, 8)
    write_turn(run, 1, 18, [(0, 10, 0)])
    assert open_store(dump)["turn-1"].missing == [(8, 10)]


def test_a_row_behind_those_of_a_capture_is_for_others_alone(
    run: Path, dump: Path, tmp_path: Path
) -> None:
    """The first answer's last token ran: its row is the second turn's, and not the first's."""
    write_turn(run, 0, 10, behind=1, prompt_tokens=6)
    write_turn(run, 1, 18, [(0, 11, 0)])
    for published in ("indexed", "files alone"):
        first, second = open_store(dump)
        assert_whole(first, 10)
        assert_whole(second, 18)
        assert sources_of(second) == [(0, 11, "turn-0")], published
        with pytest.raises(IndexError):
            first.aux_hidden_states((10, 11))
        assert open_store(dump).find(IDS[:11]) == []
        assert [c.rid for c in open_store(dump).find(IDS[:10])] == ["turn-0"]
        item = HiddenStatesDataset(dump, final="pre_norm")[0]
        assert item["input_ids"].tolist() == IDS[:10]
        assert item["loss_mask"].tolist() == [0] * 6 + [1] * 4
        assert len(item["aux_hidden_states"]) == len(item["last_hidden_states"]) == 10
        (run / "index-tp0.jsonl").unlink(missing_ok=True)
    for capture in open_store(dump):
        found = examine(capture.file)
        assert found is not None
        assert found.problem is None
    assert problem_of(open_store(dump)["turn-0"].file, np.array(IDS[:10])) is None
    write_turn(run, 2, 18, [(0, 12, 0)])
    assert open_store(dump)["turn-2"].missing == [(11, 12)]
    Drain(dump, tmp_path / "out").drain()
    assert_whole(open_store(tmp_path / "out")["turn-1"], 18)


def test_rows_in_the_cache_that_are_nobodys_stay_missing(run: Path, dump: Path) -> None:
    write_turn(run, 0, 10)
    write_turn(run, 1, 18, [(0, 10, 0)], missing=[(0, 14)])
    capture = open_store(dump)["turn-1"]
    assert (capture.missing, capture.incomplete_reason) == ([(10, 14)], "prefix_cache")
    assert len(capture.aux_hidden_states((0, 10))) == 10


def test_a_loss_of_its_own_stays_the_reason(run: Path, dump: Path) -> None:
    write_turn(run, 1, 18, [(0, 10, 0)], missing=[(0, 10), (12, 18)], reason="aborted")
    capture = open_store(dump)["turn-1"]
    assert (capture.missing, capture.incomplete_reason) == ([(0, 10), (12, 18)], "aborted")
    write_turn(run, 0, 10)
    capture = open_store(dump)["turn-1"]
    assert (capture.missing, capture.incomplete_reason) == ([(12, 18)], "aborted")


def test_a_key_of_another_run_is_another_request(run: Path, dump: Path) -> None:
    write_turn(run, 1, 18, [(0, 10, 0)])
    other = write_run(dump, replace(RUN, run_id="run-b", created=2000.0))
    write_turn(other, 0, 10, run_id="run-b")
    assert open_store(dump)["turn-1"].incomplete_reason == "source_gone"


def _others(run: Path, dump: Path) -> str:
    path_of(run, 0).unlink()
    write_turn(run, 0, 10, indexed=False, ids=[*IDS[:4], 5, *IDS[5:10]])
    return "input_ids: token 4 is another"


def _other_key(run: Path, dump: Path) -> str:
    path_of(run, 0).unlink()
    write_turn(run, 5, 10, indexed=False, sequence=0)
    return "key is 5, not 0"


def _other_run(run: Path, dump: Path) -> str:
    path_of(run, 0).unlink()
    write_turn(run, 0, 10, indexed=False, run_id="run-b")
    return "run_id is 'run-b', not 'run-a'"


def _damaged(run: Path, dump: Path) -> str:
    data = bytearray(path_of(run, 0).read_bytes())
    data[200] ^= 0xFF
    path_of(run, 0).write_bytes(data)
    return "checksum does not match"


def _shorter(run: Path, dump: Path) -> str:
    """The index says that there is a row behind, and the file has none."""
    path_of(run, 0).unlink()
    write_turn(run, 0, 9, indexed=False)
    return "input_ids: it has 9 rows"


@pytest.mark.parametrize("spoil", [_others, _other_key, _other_run, _damaged, _shorter])
def test_a_source_that_is_not_what_it_was_is_damage(
    chat: Path, dump: Path, spoil: Callable[[Path, Path], str]
) -> None:
    message = spoil(chat, dump)
    capture = open_store(dump)["turn-1"]
    assert capture.complete
    with pytest.raises(FormatError, match=message) as caught:
        capture.aux_hidden_states()
    assert str(path_of(chat, 0)) in str(caught.value)
    assert len(capture.aux_hidden_states((10, 18))) == 8


def test_an_index_that_tells_of_other_links_than_the_file_is_damage(chat: Path, dump: Path) -> None:
    index = chat / "index-tp0.jsonl"
    index.write_bytes(index.read_bytes().replace(b"[[0,10,0],[10,18,1]]", b"[[0,10,0],[10,18,0]]"))
    with pytest.raises(FormatError, match="the index says"):
        open_store(dump)["turn-2"].aux_hidden_states((20, 30))


def test_a_capture_can_be_pickled_and_held_open(chat: Path, dump: Path) -> None:
    capture = pickle.loads(pickle.dumps(open_store(dump)["turn-2"]))
    before = descriptors()
    with capture.held_open():
        assert_whole(capture, 30)
        assert descriptors() == before + 3
    assert descriptors() == before
    assert_whole(capture, 30)


def test_a_prompt_is_found_by_its_tokens(chat: Path, dump: Path) -> None:
    (found,) = open_store(dump).find(IDS[:18])
    assert_whole(found, 18)


# What stands on the store.


def test_a_selection_takes_them_while_their_sources_are_there(chat: Path, dump: Path) -> None:
    assert select(open_store(dump)).positions == [0, 1, 2]
    path_of(chat, 1).unlink()
    selection = select(open_store(dump))
    assert selection.positions == [0]
    assert selection.left_out == {"incomplete (source_gone)": 1}


def test_a_dataset_gives_them_in_any_process(chat: Path, dump: Path) -> None:
    dataset = pickle.loads(pickle.dumps(HiddenStatesDataset(dump, final="pre_norm")))
    assert len(dataset) == 3
    for number, length in enumerate((10, 18, 30)):
        item = dataset[number]
        assert item["input_ids"].tolist() == IDS[:length]
        for place, layer in enumerate((1, 3, 4)):
            expected = torch.from_numpy(TRUTH[f"layer.{layer}"][:length])
            assert item["aux_hidden_states"][:, place].equal(expected)
        assert item["last_hidden_states"].equal(torch.from_numpy(TRUTH["final.pre_norm"][:length]))
    path_of(chat, 0).unlink()
    with pytest.raises(FileNotFoundError, match="turn-0"):
        dataset[2]


def test_sources_of_several_runs_are_not_mixed_up_in_a_dataset(chat: Path, dump: Path) -> None:
    """In both runs the source has the same name and key, and other rows."""
    other = write_run(
        dump, replace(RUN, run_id="run-b", created=2000.0, norm=norm_weight([1, 2, 3, 4]))
    )
    write_turn(other, 0, 12, rid="b-0", run_id="run-b")
    write_turn(other, 1, 20, [(0, 12, 0)], rid="b-1", run_id="run-b")
    dataset = HiddenStatesDataset(dump, final="pre_norm", rids="*-1")
    assert [sources_of(dataset.capture(i)) for i in (0, 1)] == [
        [(0, 10, "turn-0")],
        [(0, 12, "b-0")],
    ]
    assert [len(dataset[i]["input_ids"]) for i in (0, 1)] == [18, 20]


def test_an_export_holds_all_rows(chat: Path, dump: Path, tmp_path: Path) -> None:
    plan = make_plan(open_store(dump), format_named("safetensors"), Wish())
    assert export(plan, tmp_path / "out", 1, lambda _: None).written == 3
    from safetensors.torch import load_file

    written = sorted((tmp_path / "out").rglob("*.safetensors"))
    assert len(written) == 3
    for path, length in zip(written, (10, 18, 30), strict=True):
        tensors = load_file(path)
        assert tensors["input_ids"].tolist() == IDS[:length]
        for name, rows in TRUTH.items():
            assert tensors[name].equal(torch.from_numpy(rows[:length]))


def test_a_drain_in_any_order_keeps_the_links(run: Path, dump: Path, tmp_path: Path) -> None:
    """First who has the rows of another, then, from a server that goes on, the other."""
    store = tmp_path / "store"
    write_turn(run, 1, 18, [(0, 10, 0)])
    Drain(dump, store).drain()
    moved = open_store(store)["turn-1"]
    assert (moved.complete, moved.incomplete_reason) == (False, "source_gone")
    write_turn(run, 0, 10)
    write_turn(run, 2, 30, [(0, 10, 0), (10, 18, 1)])
    # What is left in the source has lost a part of its rows to the store.
    assert open_store(dump)["turn-2"].missing == [(10, 18)]
    Drain(dump, store).drain()
    assert list(dump.rglob("*.hsc")) == []
    for key, length in ((0, 10), (1, 18), (2, 30)):
        assert_whole(open_store(store)[f"turn-{key}"], length)
    (store / "run-a" / "index-tp0.jsonl").unlink()
    assert_whole(open_store(store)["turn-2"], 30)


def test_an_inspection_counts_them_as_complete(
    chat: Path, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--store", str(dump)]) == 0
    assert "3, of which complete 3" in capsys.readouterr().out


def test_files_with_links_are_sound_by_themselves(chat: Path) -> None:
    for key in range(3):
        found = examine(str(path_of(chat, key)))
        assert found is not None
        assert found.problem is None


@pytest.mark.parametrize(
    "links",
    [[(0, 12, 0)], [(10, 12, 0)], [(4, 4, 0)], [(0, 6, 0), (5, 10, 2)], [(6, 10, 0), (0, 6, 0)]],
    ids=["over-own-rows", "own-rows", "empty", "overlapping", "not-ascending"],
)
def test_links_that_cannot_be_are_found(run: Path, links: list[tuple[int, int, int]]) -> None:
    write_turn(run, 1, 18, links, missing=[(0, 10)])
    found = examine(str(path_of(run, 1)))
    assert found is not None
    assert "links" in str(found.problem)
