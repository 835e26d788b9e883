"""hs_capture.stream yields captures as they are published, once each, and deletes when asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from capture_files import RUN, norm_weight, write_capture, write_run
from hs_capture import Capture, StoreNotFoundError, stream
from unit.export.stores import streams, write_store


def follow(path: Path, **more: bool) -> Iterator[Capture]:
    """A stream that does not end by itself while this test looks."""
    return stream(path, poll_seconds=0.01, **more)


def test_what_is_there_comes_first_and_then_what_is_published(tmp_path: Path) -> None:
    run = write_store(tmp_path, (2, 3)) / RUN.run_id
    captures = follow(tmp_path)
    assert [next(captures).rid, next(captures).rid] == ["r0", "r1"]
    write_capture(run, 2, "late", streams(4))
    late = next(captures)
    assert (late.rid, late.aux_hidden_states().shape) == ("late", (4, 3, 4))


def test_the_next_servers_run_is_followed_too(tmp_path: Path) -> None:
    write_store(tmp_path, (2,))
    captures = follow(tmp_path)
    assert next(captures).rid == "r0"
    later = write_run(tmp_path, replace(RUN, run_id="run-b", created=2000.0))
    write_capture(later, 0, "of-b", streams(3))
    assert next(captures).rid == "of-b"


def test_the_norm_of_changed_weights_is_there_in_time(tmp_path: Path) -> None:
    """run.json gets it while the stream goes on."""
    first = replace(RUN, norm=norm_weight([1.0, 1.0, 1.0, 1.0]))
    run = write_run(tmp_path, first)
    write_capture(run, 0, "before", streams(3))
    captures = follow(tmp_path)
    before = next(captures).last_hidden_states("post_norm")
    replace(first, norms={"1": norm_weight([2.0, 2.0, 2.0, 2.0])}).write(run / "run.json")
    write_capture(run, 1, "after", streams(3), weights_version=1)
    after = next(captures).last_hidden_states("post_norm")
    assert (after == 2 * before).all()


def test_a_directory_may_be_empty_at_first(tmp_path: Path) -> None:
    assert list(stream(tmp_path, idle_seconds=0, poll_seconds=0.01)) == []
    write_store(tmp_path, (2,))
    assert [c.rid for c in stream(tmp_path, idle_seconds=0)] == ["r0"]


def test_a_single_run_can_be_followed(tmp_path: Path) -> None:
    run = write_store(tmp_path, (2,)) / RUN.run_id
    assert [c.rid for c in stream(run, idle_seconds=0)] == ["r0"]


def test_a_capture_is_deleted_when_the_next_is_asked_for(tmp_path: Path) -> None:
    write_store(tmp_path, (2, 3))
    captures = follow(tmp_path, delete=True)
    first = next(captures)
    assert len(first.input_ids) == 2
    second = next(captures)
    assert not first.path.exists()
    assert second.path.exists()


def test_a_loop_that_is_left_keeps_the_capture_in_hand(tmp_path: Path) -> None:
    write_store(tmp_path, (2, 3))
    for capture in follow(tmp_path, delete=True):
        if capture.rid == "r1":
            break
    assert [path.name for path in tmp_path.rglob("*.hsc")] == ["000000001-x.hsc"]


@pytest.mark.parametrize(("incomplete", "rids"), [(False, ["r0"]), (True, ["r0", "part"])])
def test_incomplete_captures_come_only_when_asked_for_and_go_with_the_others(
    tmp_path: Path, incomplete: bool, rids: list[str]
) -> None:
    run = write_store(tmp_path, (2,)) / RUN.run_id
    write_capture(run, 1, "part", streams(4), missing=[(0, 2)], reason="aborted")
    found = stream(tmp_path, delete=True, incomplete=incomplete, idle_seconds=0)
    assert [capture.rid for capture in found] == rids
    assert list(tmp_path.rglob("*.hsc")) == []


def test_a_file_that_another_took_is_passed_over(tmp_path: Path) -> None:
    write_store(tmp_path, (2, 3))
    next(tmp_path.rglob("000000000-x.hsc")).unlink()
    assert [c.rid for c in stream(tmp_path, idle_seconds=0)] == ["r1"]


def test_a_path_that_is_no_directory_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no such directory"):
        stream(tmp_path / "nothing")


def test_the_name_is_the_function_whatever_was_imported_before() -> None:
    import hs_capture.streaming

    assert hs_capture.stream is stream is hs_capture.streaming.stream
