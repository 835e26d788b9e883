"""hs_capture.stream yields captures as they are published, once each, and deletes when asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from capture_files import RUN, norm_weight, write_capture, write_run
from hs_capture import Capture, StoreNotFoundError, followed_run, stream
from hs_capture.format.index import IndexEntry, append_line
from linked_captures import assert_whole, sources_of, write_turn
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


# Captures that have rows of others.


def paths(dump: Path) -> list[int]:
    """The numbers of the captures that are there."""
    return sorted(int(path.name[:9]) for path in dump.rglob("*.hsc"))


def test_linked_rows_come_with_a_capture(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_turn(run, 0, 10)
    write_turn(run, 1, 18, [(0, 10, 0)])
    captures = follow(tmp_path)
    assert_whole(next(captures), 10)
    second = next(captures)
    assert_whole(second, 18)
    assert sources_of(second) == [(0, 10, "turn-0")]
    write_turn(run, 2, 30, [(0, 10, 0), (10, 18, 1)])
    assert_whole(next(captures), 30)


def test_a_capture_waits_for_one_that_it_has_rows_of(tmp_path: Path) -> None:
    """A server may publish a short request before the long one that it shares a prefix with."""
    run = write_run(tmp_path)
    write_turn(run, 1, 18, [(0, 10, 0)], sequence=0)
    write_turn(run, 2, 5, sequence=1)
    captures = follow(tmp_path)
    assert next(captures).rid == "turn-2"
    write_turn(run, 0, 10, sequence=2)
    assert_whole(next(captures), 10)
    assert_whole(next(captures), 18)


def test_a_capture_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path)
    write_turn(run, 1, 18, [(0, 10, 0)], sequence=0)
    monkeypatch.setattr(followed_run, "HOLD_SECONDS", 0.05)
    capture = next(stream(tmp_path, incomplete=True, poll_seconds=0.01))
    assert (capture.rid, capture.incomplete_reason) == ("turn-1", "source_gone")
    assert capture.missing == [(0, 10)]


def test_what_still_waits_comes_at_the_end(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_turn(run, 1, 18, [(0, 10, 0)], sequence=0)
    found = stream(tmp_path, incomplete=True, idle_seconds=0)
    assert [(c.rid, c.incomplete_reason) for c in found] == [("turn-1", "source_gone")]


def test_a_capture_that_was_lost_is_not_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_turn(run, 1, 18, [(0, 10, 0)], sequence=0)
    lost = IndexEntry(1, None, "turn-0", 10, 0, False, "dropped", ((0, 10),), 0, 0, 1002.0, 0)
    with (run / "index-tp0.jsonl").open("ab") as index:
        index.write(append_line(lost))
    captures = stream(tmp_path, incomplete=True, poll_seconds=0.01)
    assert next(captures).incomplete_reason == "source_gone"


def test_a_file_stays_for_those_that_have_rows_of_it(tmp_path: Path) -> None:
    """All of them are published when the first is deleted, and whole when they are handed out."""
    run = write_run(tmp_path)
    write_turn(run, 0, 10)
    write_turn(run, 1, 18, [(0, 10, 0)])
    write_turn(run, 2, 30, [(0, 10, 0), (10, 18, 1)])
    write_turn(run, 3, 6)
    captures = follow(tmp_path, delete=True)
    assert_whole(next(captures), 10)
    assert_whole(next(captures), 18)
    assert paths(tmp_path) == [0, 1, 2, 3]
    assert_whole(next(captures), 30)
    assert paths(tmp_path) == [0, 1, 2, 3]
    assert next(captures).rid == "turn-3"
    assert paths(tmp_path) == [3]


def test_who_comes_after_its_source_was_deleted_is_incomplete(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_turn(run, 0, 10)
    write_turn(run, 1, 6)
    captures = stream(tmp_path, delete=True, incomplete=True, poll_seconds=0.01)
    assert [next(captures).rid, next(captures).rid] == ["turn-0", "turn-1"]
    assert paths(tmp_path) == [1]
    write_turn(run, 2, 18, [(0, 10, 0)])
    late = next(captures)
    assert (late.rid, late.incomplete_reason) == ("turn-2", "source_gone")


def test_files_are_kept_for_requests_that_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a time after each use; at the end of the stream all are deleted."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None)
    monkeypatch.setattr(followed_run, "time", clock)
    run = write_run(tmp_path)
    write_turn(run, 0, 10)
    write_turn(run, 1, 6)
    captures = stream(tmp_path, delete=True, keep_seconds=60, idle_seconds=1, poll_seconds=0.01)
    assert [next(captures).rid, next(captures).rid] == ["turn-0", "turn-1"]
    now[0] += 50
    write_turn(run, 2, 18, [(0, 10, 0)])
    assert_whole(next(captures), 18)
    # By then turn-1 was used 70 s ago, and rows of turn-0 just now.
    now[0] += 70
    write_turn(run, 3, 7)
    assert next(captures).rid == "turn-3"
    assert paths(tmp_path) == [0, 2, 3]
    now[0] += 50
    write_turn(run, 4, 20, [(0, 10, 0)])
    assert_whole(next(captures), 20)
    assert list(captures) == []
    assert paths(tmp_path) == []


def test_a_capture_that_others_took_holds_no_file_back(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_turn(run, 0, 10)
    write_turn(run, 1, 18, [(0, 10, 0)])
    write_turn(run, 2, 6)
    (taken,) = tmp_path.rglob("000000001-x.hsc")
    captures = follow(tmp_path, delete=True)
    assert next(captures).rid == "turn-0"
    taken.unlink()
    assert next(captures).rid == "turn-2"
    assert paths(tmp_path) == [2]
