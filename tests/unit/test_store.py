"""A store gives back what was captured, finds it by rid, and never makes up a row."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hs_capture
from capture_files import (
    METADATA,
    RUN,
    norm_weight,
    states,
    write_capture,
    write_container,
    write_run,
)
from hs_capture import FormatError, NotCapturedError, StoreNotFoundError, open_store
from hs_capture.format.container import ContainerReader
from hs_capture.format.index import IndexEntry, append_line
from hs_capture.norm import rms_norm

LAYERS = {f"layer.{layer}": states(10, seed=layer + 1) for layer in (-1, 1, 3)}
STREAMS = {**LAYERS, "final.pre_norm": states(10, seed=9)}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return tmp_path / "dump"


def capture(dump: Path, **more: Any) -> hs_capture.Capture:
    write_capture(write_run(dump), 0, "r", STREAMS, **more)
    return open_store(dump)["r"]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


# What a capture gives back.


def test_a_capture_says_what_it_is(dump: Path) -> None:
    c = capture(dump)
    assert (c.rid, c.sequence, c.num_tokens) == ("r", 0, 10)
    assert (c.complete, c.incomplete_reason, c.missing) == (True, None, [])
    assert (c.layer_ids, c.hidden_size, c.dtype) == ([-1, 1, 3], 4, torch.float32)
    assert c.metadata["model_class"] == "DeepseekV2ForCausalLM"
    assert c.metadata["final"] == ["pre_norm"]
    assert c.run == RUN
    assert repr(c) == "Capture('r', 10 tokens, complete)"


def test_states_and_token_ids_come_back_bit_for_bit(dump: Path) -> None:
    c = capture(dump)
    assert c.input_ids.dtype == torch.int64
    assert c.input_ids.tolist() == list(range(10))
    expected = np.stack([LAYERS[f"layer.{layer}"] for layer in (-1, 1, 3)], axis=1)
    assert c.aux_hidden_states().shape == (10, 3, 4)
    assert c.aux_hidden_states().numpy().tobytes() == expected.tobytes()
    last = c.last_hidden_states("pre_norm")
    assert last.numpy().tobytes() == STREAMS["final.pre_norm"].tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_every_dtype_comes_back_as_itself(dump: Path, name: str) -> None:
    values = states(10, dtype="bfloat16") if name == "bfloat16" else states(10, dtype="float16")
    values = values.view("u1")[:, :4].copy() if name.startswith("float8") else values
    run = write_run(dump)
    write_capture(run, 0, "r", {"layer.1": values, "final.post_norm": values}, dtype=name)
    c = open_store(dump)["r"]
    assert c.dtype == getattr(torch, name)
    for tensor in (c.aux_hidden_states()[:, 0], c.last_hidden_states("post_norm")):
        assert tensor.dtype == c.dtype
        assert tensor.contiguous().view(torch.uint8).numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("rows", "start", "stop"),
    [
        (slice(2, 5), 2, 5),
        (slice(None), 0, 10),
        (slice(-3, None), 7, 10),
        (slice(8, 99), 8, 10),
        (slice(5, 2), 5, 5),
        ((2, 5), 2, 5),
        ((10, 10), 10, 10),
    ],
)
def test_rows_are_a_slice_or_a_pair(
    dump: Path, rows: slice | tuple[int, int], start: int, stop: int
) -> None:
    c = capture(dump)
    assert torch.equal(c.aux_hidden_states(rows), c.aux_hidden_states()[start:stop])
    last = c.last_hidden_states("pre_norm")
    assert torch.equal(c.last_hidden_states("pre_norm", rows), last[start:stop])


def test_layers_come_in_the_order_asked_for(dump: Path) -> None:
    c = capture(dump)
    whole = c.aux_hidden_states()
    assert torch.equal(c.aux_hidden_states(layers=[3, -1]), whole[:, [2, 0]])
    assert torch.equal(c.aux_hidden_states((4, 6), (1,)), whole[4:6, [1]])


def test_only_the_blocks_that_are_needed_are_read(dump: Path) -> None:
    """Every other block is damaged, and the answer is still right."""
    c = capture(dump)
    expected = c.aux_hidden_states((3, 6), [1])
    with ContainerReader(c.path) as reader:
        others = [
            block.offset
            for name, stream in reader.streams.items()
            for block in stream.blocks
            if (name, block.start) != ("layer.1", 3)
        ]
    assert len(others) == 5 * 4 - 1
    for offset in others:
        flip(c.path, offset)
    assert torch.equal(c.aux_hidden_states((3, 6), [1]), expected)
    with pytest.raises(FormatError, match=r"stream 'layer.1' rows \[0, 3\)"):
        c.aux_hidden_states((2, 6), [1])


# What was not captured is never made up.


def test_an_incomplete_capture_gives_only_the_rows_it_has(dump: Path) -> None:
    c = capture(dump, missing=[(0, 4), (9, 10)], reason="prefix_cache")
    assert (c.complete, c.incomplete_reason) == (False, "prefix_cache")
    assert c.missing == [(0, 4), (9, 10)]
    assert repr(c) == "Capture('r', 10 tokens, incomplete: prefix_cache)"
    assert c.input_ids.tolist() == list(range(10))
    assert c.aux_hidden_states((4, 9)).shape == (5, 3, 4)
    assert c.aux_hidden_states((4, 9)).numpy()[:, 1].tobytes() == LAYERS["layer.1"][4:9].tobytes()
    for rows in (None, (3, 5), slice(8, None)):
        with pytest.raises(NotCapturedError, match=r"were not captured \(prefix_cache\)"):
            c.aux_hidden_states(rows)
        with pytest.raises(NotCapturedError):
            c.last_hidden_states("post_norm", rows)
    assert c.aux_hidden_states((2, 2)).shape == (0, 3, 4)


def test_the_error_is_a_plain_sentence_and_a_key_error(dump: Path) -> None:
    with pytest.raises(KeyError) as caught:
        capture(dump).aux_hidden_states(layers=[1, 7])
    assert str(caught.value) == "capture 'r': layers [1, 7] asked for, captured are [-1, 1, 3]"


def test_no_layers_is_not_an_empty_tensor(dump: Path) -> None:
    write_capture(write_run(dump), 0, "r", {"final.pre_norm": states(3)})
    with pytest.raises(NotCapturedError, match=r"layers \[\] asked for, captured are \[\]"):
        open_store(dump)["r"].aux_hidden_states()


@pytest.mark.parametrize("rows", [(-1, 2), (0, 11), (5, 4)])
def test_a_pair_beyond_the_prompt_is_an_index_error(dump: Path, rows: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match="not within the 10 tokens"):
        capture(dump).aux_hidden_states(rows)


def test_a_step_is_refused(dump: Path) -> None:
    with pytest.raises(ValueError, match="a step is not supported"):
        capture(dump).aux_hidden_states(slice(0, 10, 2))


@pytest.mark.parametrize("rows", [5, "12", (1, 2, 3), (1,), (0.0, 2.0), [None, 2]])
def test_rows_of_another_type_are_refused_in_words(dump: Path, rows: Any) -> None:
    expected = f"rows is {rows!r}: expected None for all, a slice, or a (start, stop) pair"
    with pytest.raises(TypeError, match=f"^{re.escape(expected)}"):
        capture(dump).aux_hidden_states(rows)


# The two final states.


def test_post_norm_is_derived_from_pre_norm_with_the_norm_of_the_run(dump: Path) -> None:
    norm = norm_weight([1, 2, 3, 4], eps=1e-5)
    run = write_run(dump, replace(RUN, norm=norm))
    write_capture(run, 0, "r", STREAMS)
    c = open_store(dump)["r"]
    pre = c.last_hidden_states("pre_norm")
    expected = rms_norm(pre, torch.tensor([1.0, 2.0, 3.0, 4.0]), 1e-5)
    assert torch.equal(c.last_hidden_states("post_norm"), expected)
    assert torch.equal(c.last_hidden_states("post_norm", (2, 5)), expected[2:5])


def test_post_norm_is_derived_with_the_norm_of_the_weights_that_computed_the_rows(
    dump: Path,
) -> None:
    """A norm that the run does not hold is not replaced by another."""
    first, second = norm_weight([1, 2, 3, 4]), norm_weight([4, 3, 2, 1], eps=1.0)
    run = write_run(dump, replace(RUN, norm=first, norms={"2": second}))
    for version in (0, 1, 2):
        write_capture(run, version, f"v{version}", STREAMS, weights_version=version)
    store = open_store(dump)
    for version, weight, eps in ((0, [1.0, 2.0, 3.0, 4.0], 1e-6), (2, [4.0, 3.0, 2.0, 1.0], 1.0)):
        c = store[f"v{version}"]
        assert c.weights_version == c.metadata["weights_version"] == version
        expected = rms_norm(c.last_hidden_states("pre_norm"), torch.tensor(weight), eps)
        assert torch.equal(c.last_hidden_states("post_norm"), expected)
    with pytest.raises(NotCapturedError, match=r"no run\.json with a norm"):
        store["v1"].last_hidden_states("post_norm")


@pytest.mark.parametrize("indexed", [True, False])
def test_a_capture_says_which_weights_and_which_adapter(dump: Path, indexed: bool) -> None:
    run = write_run(dump)
    write_capture(run, 0, "a", STREAMS, indexed=indexed, weights_version=3, lora="tuned")
    write_capture(run, 1, "b", STREAMS, indexed=indexed)
    store = open_store(dump)
    assert [(c.rid, c.weights_version, c.lora) for c in store] == [
        ("a", 3, "tuned"),
        ("b", 0, None),
    ]
    assert store["a"].metadata["lora"] == "tuned"


def test_a_stored_post_norm_is_preferred(dump: Path) -> None:
    run = write_run(dump, replace(RUN, norm=norm_weight([1, 2, 3, 4])))
    stored = states(10, seed=11)
    write_capture(run, 0, "r", {**STREAMS, "final.post_norm": stored})
    c = open_store(dump)["r"]
    assert c.metadata["final"] == ["pre_norm", "post_norm"]
    assert c.last_hidden_states("post_norm").numpy().tobytes() == stored.tobytes()


def test_pre_norm_cannot_be_derived(dump: Path) -> None:
    write_capture(write_run(dump), 0, "r", {"final.post_norm": states(3)})
    with pytest.raises(NotCapturedError) as caught:
        open_store(dump)["r"].last_hidden_states("pre_norm")
    assert str(caught.value) == (
        "capture 'r': pre_norm states were not captured; captured are ['post_norm']"
    )


def test_without_a_norm_post_norm_cannot_be_derived(dump: Path) -> None:
    with pytest.raises(NotCapturedError, match=r"no run\.json with a norm"):
        capture(dump).last_hidden_states("post_norm")


def test_another_final_state_is_refused(dump: Path) -> None:
    with pytest.raises(ValueError, match="'norm': expected 'pre_norm' or 'post_norm'"):
        capture(dump).last_hidden_states("norm")  # type: ignore[arg-type]


# Finding captures.


def test_a_dump_directory_holds_its_runs_oldest_first(dump: Path) -> None:
    late = write_run(dump, replace(RUN, run_id="a-late", created=2000.0))
    early = write_run(dump, replace(RUN, run_id="b-early", created=1000.0))
    write_capture(late, 0, "same", {"layer.1": states(3)})
    write_capture(early, 1, "two", {"layer.1": states(4)})
    write_capture(early, 0, "same", {"layer.1": states(5)})
    store = open_store(dump)
    assert [(c.rid, c.num_tokens) for c in store] == [("same", 5), ("two", 4), ("same", 3)]
    assert (len(store), store.rids()) == (3, ["same", "two"])
    assert [run.run_id for run in store.runs] == ["b-early", "a-late"]
    assert store["same"].num_tokens == 3
    assert [c.num_tokens for c in store.captures("same")] == [5, 3]
    assert "same" in store
    assert "other" not in store


def test_one_run_is_a_store(dump: Path) -> None:
    run = write_run(dump)
    write_capture(run, 0, "r", STREAMS)
    assert [c.rid for c in open_store(str(run))] == ["r"]


def test_a_folder_of_captures_is_a_store_in_order_of_time(dump: Path, tmp_path: Path) -> None:
    run = write_run(dump)
    write_capture(run, 0, "second", STREAMS, captured_at=20.0)
    write_capture(run, 1, "first", STREAMS, captured_at=10.0)
    folder = tmp_path / "exported"
    shutil.copytree(run / "000000", folder / "deep")
    store = open_store(folder)
    assert [c.rid for c in store] == ["first", "second"]
    assert store.runs == ()
    assert store["first"].aux_hidden_states().shape == (10, 3, 4)


@pytest.mark.parametrize(
    "rid", ["../../x", "x" * 300, "", "猫/\0\n\"'", "-", "CON", "a b"], ids=str.__repr__
)
def test_any_rid_is_found_again(dump: Path, rid: str) -> None:
    run = write_run(dump)
    write_capture(run, 0, rid, {"layer.1": states(3)})
    write_capture(run, 1, "other", {"layer.1": states(3)}, indexed=False)
    assert open_store(dump)[rid].metadata["rid"] == rid


def test_a_prompt_is_found_by_its_token_ids(dump: Path) -> None:
    """All captures of it, the oldest first, and those of no other prompt of the same length."""
    first = write_run(dump)
    second = write_run(dump, replace(RUN, run_id="second", created=RUN.created + 1))
    write_capture(first, 1, "other", STREAMS)
    write_capture(second, 0, "again", STREAMS)
    write_capture(first, 0, "r", STREAMS)
    longer = {name: np.tile(rows, (2, 1)) for name, rows in STREAMS.items()}
    write_capture(first, 2, "longer", longer)
    store = open_store(dump)
    ids = list(range(10))
    assert [c.rid for c in store.find(ids)] == ["r", "again"]
    assert [c.rid for c in store.find(np.array(ids))] == ["r", "again"]
    assert [c.rid for c in store.find(store["other"].input_ids)] == ["other"]
    assert store.find(ids[:-1]) == store.find([]) == []
    store["r"].path.unlink()
    assert [c.rid for c in store.find(ids)] == ["again"]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("hello", "str"),
        (["a"], "list"),
        ([0.5, 1.5], "list"),
        ([[1, 2], [3]], "list"),
        ([[1, 2]], "list"),
        (7, "int"),
        (None, "NoneType"),
        (torch.tensor([0.5]), "Tensor"),
    ],
)
def test_only_token_ids_find_a_prompt(dump: Path, given: Any, kind: str) -> None:
    capture(dump)
    with pytest.raises(TypeError, match=f"^input_ids is a {kind}: expected token ids, a sequence"):
        open_store(dump).find(given)


def test_a_conversation_is_found_by_its_prompt_and_as_a_whole(dump: Path) -> None:
    run = write_run(dump)
    write_capture(run, 0, "prompt-alone", STREAMS)
    tokens = len(next(iter(STREAMS.values())))
    write_capture(run, 1, "talk", STREAMS, prompt_tokens=4)
    store = open_store(dump)
    alone, talk = store["prompt-alone"], store["talk"]
    assert (alone.prompt_tokens, alone.num_tokens) == (tokens, tokens)
    assert (talk.prompt_tokens, talk.num_tokens) == (4, tokens)
    assert talk.metadata["prompt_tokens"] == 4
    ids = talk.input_ids
    for wanted in (ids, ids[:4]):
        assert [c.rid for c in store.find(wanted)] == ["talk"]
    assert store.find(ids[:5]) == store.find(ids[1:5]) == []
    assert store.find(alone.input_ids[:4]) == []


def test_a_rid_that_never_came_is_a_key_error(dump: Path) -> None:
    write_run(dump)
    with pytest.raises(NotCapturedError) as caught:
        open_store(dump)["r"]
    assert str(caught.value) == f"{dump}: no capture of rid 'r'"


def test_a_run_without_captures_is_an_empty_store(dump: Path) -> None:
    write_run(dump)
    store = open_store(dump)
    assert (len(store), list(store), store.rids()) == (0, [], [])


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_where_nothing_is_there_is_no_store(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "empty":
        (path / "folder").mkdir(parents=True)
    elif kind == "file":
        path.write_text("x")
    with pytest.raises(FileNotFoundError, match=r"no captures at .*: found .*, expected a dump"):
        open_store(path)
    with pytest.raises(StoreNotFoundError):
        open_store(path)


# The files are the truth, the index is a convenience.


def test_what_a_disk_keeps_beside_a_store_is_no_part_of_it(tmp_path: Path) -> None:
    """A snapshot or a wastebasket has captures a second time, lost+found what was broken."""
    dump = tmp_path / ".cache" / "dump"
    run = write_run(dump)
    write_capture(run, 0, "r", STREAMS)
    for beside in (".snapshot", ".Trash-1000", "lost+found"):
        shutil.copytree(run, dump / beside / run.name)
    shutil.copytree(run / "000000", run / ".000000.old")
    (run / next(run.glob("index-*.jsonl"))).unlink()
    assert [capture.rid for capture in open_store(dump)] == ["r"]


def test_files_that_the_index_does_not_name_are_found(dump: Path) -> None:
    run = write_run(dump)
    first = write_capture(run, 0, "a", STREAMS, indexed=False)
    write_capture(run, 1, "b", STREAMS)
    store = open_store(dump)
    assert [c.rid for c in store] == ["a", "b"]
    assert (first.raw_bytes, first.rows) == (4 * 10 * 16, 10)
    assert first.stored_bytes == store["a"].path.stat().st_size


def test_index_lines_without_a_file_are_no_captures(dump: Path) -> None:
    run = write_run(dump)
    gone = write_capture(run, 0, "gone", STREAMS)
    write_capture(run, 1, "here", STREAMS)
    (run / str(gone.file)).unlink()
    lost = IndexEntry(2, None, "lost", 4, 0, False, "dropped", ((0, 4),), 0, 0, 1.0)
    outside = replace(gone, file="../../etc/passwd")
    with (run / "index-tp0.jsonl").open("ab") as index:
        index.write(append_line(lost) + append_line(outside))
    assert [c.rid for c in open_store(dump)] == ["here"]


def test_a_torn_or_lost_index_changes_nothing(dump: Path) -> None:
    run = write_run(dump)
    for sequence in range(3):
        write_capture(run, sequence, f"r{sequence}", STREAMS)
    index = run / "index-tp0.jsonl"
    data = index.read_bytes()
    for length in range(0, len(data), 7):
        index.write_bytes(data[:length])
        assert open_store(dump).rids() == ["r0", "r1", "r2"]
    index.unlink()
    assert open_store(dump).rids() == ["r0", "r1", "r2"]


def test_a_broken_index_is_passed_over_with_a_warning(
    dump: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_run(dump)
    write_capture(run, 0, "r", STREAMS)
    index = run / "index-tp0.jsonl"
    index.write_bytes(b"{broken\n" + index.read_bytes())
    with caplog.at_level(logging.WARNING, "hs_capture"):
        assert open_store(dump).rids() == ["r"]
    assert f"{index}: line 1: not valid JSON" in caplog.text


def test_an_index_that_tells_another_story_is_found_out(dump: Path) -> None:
    run = write_run(dump)
    entry = write_capture(run, 0, "r", STREAMS, indexed=False)
    (run / "index-tp0.jsonl").write_bytes(append_line(replace(entry, rid="not-r")))
    with pytest.raises(FormatError, match="but the index says"):
        open_store(dump)["not-r"].aux_hidden_states()


def test_unfinished_files_are_not_seen(dump: Path) -> None:
    run = write_run(dump)
    (run / "open").mkdir()
    (run / "open" / "000000000.part").write_bytes(b"HSCAP")
    assert len(open_store(dump)) == 0


def test_a_store_opened_while_a_server_writes_sees_whole_captures(dump: Path) -> None:
    run = write_run(dump)
    for sequence in range(5):
        write_capture(run, sequence, f"r{sequence}", STREAMS, indexed=sequence != 4)
        store = open_store(dump)
        assert len(store) == sequence + 1
        assert all(c.aux_hidden_states().shape == (10, 3, 4) for c in store)


# Damage.


def test_a_damaged_capture_is_named_when_it_is_read(dump: Path) -> None:
    c = capture(dump)
    flip(c.path, c.path.stat().st_size - 40)
    c = open_store(dump)["r"]
    with pytest.raises(FormatError, match=f"^{c.path}: footer at byte"):
        c.aux_hidden_states()


def test_a_damaged_capture_that_no_index_names_is_named_at_once(dump: Path) -> None:
    run = write_run(dump)
    entry = write_capture(run, 0, "r", STREAMS, indexed=False)
    path = run / str(entry.file)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=f"^{path}: end marker missing"):
        open_store(dump)


def test_a_damaged_run_file_is_named(dump: Path) -> None:
    run = write_run(dump)
    (run / "run.json").write_text("{")
    with pytest.raises(FormatError, match=f"^{run / 'run.json'}: not valid JSON"):
        open_store(dump)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden_size": 5}, "stream 'layer.1' is"),
        ({"dtype": "float16"}, "stream 'layer.1' is"),
        ({"layer_ids": (1, 2)}, "stream 'layer.2' is None"),
        ({"final": ("pre_norm",)}, "stream 'final.pre_norm' is None"),
    ],
)
def test_metadata_that_do_not_match_the_streams_are_found(
    dump: Path, wrong: dict[str, Any], message: str
) -> None:
    run = write_run(dump)
    metadata = replace(METADATA, **{"num_tokens": 3, "layer_ids": (1,), **wrong})
    streams = {"input_ids": ("int64", np.arange(3)), "layer.1": ("float32", states(3))}
    write_container(run / "a.hsc", streams, metadata.to_object())
    with pytest.raises(FormatError, match=message):
        open_store(dump)["r"].aux_hidden_states()


# What a capture costs to hold.


def test_a_capture_can_be_sent_to_another_process(dump: Path) -> None:
    c = capture(dump)
    assert torch.equal(pickle.loads(pickle.dumps(c)).aux_hidden_states(), c.aux_hidden_states())


def test_thousands_of_captures_hold_no_descriptor(dump: Path) -> None:
    c = capture(dump)
    c.aux_hidden_states()
    held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert str(c.path) not in held


def test_importing_the_package_imports_nothing_outside_the_standard_library() -> None:
    code = """
import sys
before = set(sys.modules)
import hs_capture
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["hs_capture"]


def test_every_public_name_is_there() -> None:
    for name in hs_capture.__all__:
        assert getattr(hs_capture, name) is not None
        assert name in dir(hs_capture)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hs_capture.nothing  # noqa: B018
