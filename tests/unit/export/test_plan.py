"""What is exported, what is left out, and what is refused because the format cannot express it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_files import RUN, write_capture, write_run
from hs_capture import ConfigError, FormatError, open_store
from hs_capture.export.formats import format_named
from hs_capture.export.plan import Plan, Wish, make_plan
from hs_capture.samples import Sample
from unit.export.stores import NORM, streams, write_samples, write_store


def plan(store: Path, name: str = "specforge", **wish: Any) -> Plan:
    return make_plan(open_store(store), format_named(name), Wish(**wish))


def test_incomplete_captures_are_counted_by_reason_and_not_exported(tmp_path: Path) -> None:
    store = write_store(tmp_path, (3,))
    for number, reason in enumerate(("aborted", "prefix_cache", "prefix_cache"), 1):
        write_capture(
            tmp_path / RUN.run_id, number, f"x{number}", streams(4), missing=[(0, 2)], reason=reason
        )
    made = plan(store)
    assert [job.capture.rid for job in made.jobs] == ["r0"]
    assert made.left_out == {"incomplete (aborted)": 1, "incomplete (prefix_cache)": 2}


def test_samples_decide_what_is_exported_and_in_which_order(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    write_samples(store, Sample(7, "b", "r2", ()), Sample(4, "a", "r1", ()))
    made = plan(store)
    assert [(job.number, job.capture.rid) for job in made.jobs] == [(4, "r1"), (7, "r2")]
    assert made.left_out == {"not in samples.jsonl": 2}


def test_a_sample_number_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    write_samples(store, Sample(7, "b", "r2", ()), Sample(7, "a", "r1", ()))
    with pytest.raises(FormatError, match="sample 7 is there twice, as rid 'r1' and as rid 'r2'"):
        plan(store)


def test_the_newest_complete_capture_of_a_rid_is_taken(tmp_path: Path) -> None:
    store = write_store(tmp_path, (3, 4))
    run = tmp_path / RUN.run_id
    write_capture(run, 2, "r0", streams(5))
    write_capture(run, 3, "r0", streams(6), missing=[(0, 1)], reason="aborted")
    made = plan(store)
    assert [(job.capture.rid, job.capture.num_tokens) for job in made.jobs] == [
        ("r1", 4),
        ("r0", 5),
    ]
    assert made.left_out == {"older captures of a rid": 1, "incomplete (aborted)": 1}


def test_a_pattern_chooses_rids(tmp_path: Path) -> None:
    made = plan(write_store(tmp_path), rids="r[13]")
    assert [job.capture.rid for job in made.jobs] == ["r1", "r3"]
    assert made.left_out == {"of other rids": 2}


def test_a_store_without_anything_to_export_says_why(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    with pytest.raises(ConfigError, match=r"no capture to export \(4 of other rids\)"):
        plan(store, rids="none-*")


@pytest.mark.parametrize("layers", [(1, 3), (1, 2, 3, 4)])
def test_specforge_takes_exactly_three_layers(tmp_path: Path, layers: tuple[int, ...]) -> None:
    store = write_store(tmp_path, layers=layers)
    hint = "choose 3 of them with --layers" if len(layers) > 3 else "capture 3 layers"
    with pytest.raises(
        ConfigError, match=f"takes exactly 3 layers, here are {len(layers)} .*{hint}"
    ):
        plan(store)
    assert plan(store, "speculators").context.layer_ids == layers


def test_three_of_more_layers_may_be_chosen(tmp_path: Path) -> None:
    store = write_store(tmp_path, layers=(-1, 1, 3, 4))
    assert plan(store, layers=(-1, 1, 4)).context.layer_ids == (-1, 1, 4)


@pytest.mark.parametrize(
    ("layers", "reason"),
    [((1, 2, 3), "layer 2 was not captured; captured are 1,3,4"), ((3, 1, 4), "ascending order")],
)
def test_layers_that_cannot_be_had_are_refused(
    tmp_path: Path, layers: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan(write_store(tmp_path), layers=layers)


@pytest.mark.parametrize("name", ["speculators", "speculators-v1"])
def test_a_norm_cannot_be_taken_back(tmp_path: Path, name: str) -> None:
    store = write_store(tmp_path, final=("post_norm",))
    with pytest.raises(
        ConfigError,
        match=r"expects the pre_norm final state, and .* has post_norm: a norm cannot be",
    ):
        plan(store, name)


def test_a_norm_that_is_not_there_cannot_be_applied(tmp_path: Path) -> None:
    store = write_store(tmp_path, norm=None)
    with pytest.raises(ConfigError, match="has pre_norm: post_norm is derived with the norm that"):
        plan(store)
    assert plan(store, "modelopt").context.state == "pre_norm"


def test_a_store_without_final_states_is_refused(tmp_path: Path) -> None:
    store = write_store(tmp_path, final=())
    with pytest.raises(
        ConfigError, match="has none: capture with SGLANG_HS_FINAL=pre_norm or both"
    ):
        plan(store, "modelopt")


def test_post_norm_states_are_taken_as_stored_where_they_are(tmp_path: Path) -> None:
    store = write_store(tmp_path, final=("pre_norm", "post_norm"))
    made = plan(store)
    assert (made.context.state, made.sidecar.final_state_origin) == ("post_norm", "as captured")


def test_a_norm_the_format_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--final pre_norm: SpecForge expects post_norm"):
        plan(write_store(tmp_path), state="pre_norm")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"config_digest": "other"}, "model: 00112233 and other"),
        ({"dtype": "bfloat16"}, "dtype: float32 and bfloat16"),
        ({"layer_ids": (1, 3, 5)}, r"choice of layers: \(1, 3, 4\) and \(1, 3, 5\)"),
    ],
)
def test_runs_of_different_kinds_are_not_mixed(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    store = write_store(tmp_path)
    other = replace(RUN, run_id="run-b", created=2000.0, norm=NORM, **change)
    write_capture(write_run(tmp_path, other), 0, "s0", streams(3))
    with pytest.raises(ConfigError, match=f"runs run-a and run-b differ in their {what}"):
        plan(store)
