"""The index survives a writer that dies in the middle of a line, and nothing worse silently."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_capture.errors import FormatError
from hs_capture.format.index import IndexEntry, append_line, cut_torn_line, read_index

ENTRY = IndexEntry(
    sequence=7,
    file="000000/000000007-r.hsc",
    rid="r",
    num_tokens=10,
    rows=8,
    complete=False,
    incomplete_reason="prefix_cache",
    missing=((0, 2),),
    raw_bytes=1000,
    stored_bytes=700,
    published=1001.5,
    key=3,
    weights_version=2,
    lora="tuned",
    links=((0, 2, 1),),
    prompt_tokens=6,
    rows_behind=1,
)
LINKED = IndexEntry(
    sequence=9,
    file="000000/000000009-r.hsc",
    rid="r",
    num_tokens=10,
    rows=6,
    complete=False,
    incomplete_reason="prefix_cache",
    missing=((0, 4),),
    raw_bytes=1000,
    stored_bytes=700,
    published=1001.5,
    key=4,
    links=((0, 2, 1), (2, 3, 3)),
)
LOST = IndexEntry(8, None, "s", 4, 0, False, "dropped", ((0, 4),), 0, 0, 1002.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index-tp0.jsonl"


def test_entries_come_back_in_order(path: Path) -> None:
    path.write_bytes(append_line(ENTRY) + append_line(LOST) + append_line(LINKED))
    assert read_index(path) == [ENTRY, LOST, LINKED]


def test_a_line_is_plain_json(path: Path) -> None:
    assert json.loads(append_line(ENTRY)) == {
        "sequence": 7,
        "file": "000000/000000007-r.hsc",
        "rid": "r",
        "num_tokens": 10,
        "rows": 8,
        "complete": False,
        "incomplete_reason": "prefix_cache",
        "missing": [[0, 2]],
        "raw_bytes": 1000,
        "stored_bytes": 700,
        "published": 1001.5,
        "key": 3,
        "weights_version": 2,
        "lora": "tuned",
        "links": [[0, 2, 1]],
        "prompt_tokens": 6,
        "rows_behind": 1,
    }


def test_a_line_of_an_earlier_release_has_no_key_and_is_of_the_first_weights() -> None:
    fields = json.loads(append_line(LOST))
    del fields["key"], fields["weights_version"], fields["lora"], fields["links"]
    entry = IndexEntry.from_json(json.dumps(fields).encode(), "line")
    assert entry == LOST
    assert (entry.key, entry.weights_version, entry.lora, entry.links) == (None, 0, None, ())


WHOLE = replace(
    ENTRY, rows=10, complete=True, incomplete_reason=None, missing=(), lora=None, links=()
)


@pytest.mark.parametrize(
    "line",
    [
        append_line(WHOLE),
        append_line(replace(WHOLE, prompt_tokens=None)),
        append_line(WHOLE).replace(b',"links":[],"prompt_tokens":6,"rows_behind":1', b""),
        append_line(LINKED),
        append_line(replace(LINKED, prompt_tokens=8)),
    ],
    ids=["with-an-answer", "prompt", "early", "linked", "linked-with-an-answer"],
)
def test_usual_lines_are_read_the_fast_way(
    path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """Complete captures, also of early releases, and captures with links."""
    expected = IndexEntry.from_json(line, "line")
    path.write_bytes(line)

    def slow(*_: object) -> None:
        raise AssertionError("read the slow way")

    monkeypatch.setattr(IndexEntry, "from_json", slow)
    (read,) = read_index(path)
    assert read == expected
    assert hash(read) == hash(expected)


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        (b"[2,3,3]", b"[2,3]", "line 1: field 'links': expected 3 values, found 2"),
        (b"[2,3,3]", b"[2,3,3.0]", "line 1: field 'links': expected int, found 3.0"),
        (b"[2,3,3]", b"[2,3,true]", "line 1: field 'links': expected int, found True"),
        (b"[2,3,3]", b"7", "line 1: field 'links': expected an array, found 7"),
        (b"[[0,4]]", b"[[0,null]]", "line 1: field 'missing': expected int, found null"),
    ],
)
def test_a_broken_line_with_links_is_named(
    path: Path, was: bytes, now: bytes, message: str
) -> None:
    line = append_line(LINKED)
    assert was in line
    path.write_bytes(line.replace(was, now))
    with pytest.raises(FormatError, match=re.escape(message)):
        read_index(path)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_rid_stays_on_its_line(rid: str) -> None:
    line = append_line(IndexEntry(0, None, rid, 0, 0, True, None, (), 0, 0, 0.0))
    assert line.count(b"\n") == 1
    assert IndexEntry.from_json(line, "line").rid == rid


def test_an_index_cut_anywhere_keeps_its_whole_lines(path: Path) -> None:
    lines = [append_line(ENTRY), append_line(LOST)]
    data = b"".join(lines)
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        assert read_index(path) == [ENTRY, LOST][: data[:length].count(b"\n")]


def test_an_empty_index_has_no_entries(path: Path) -> None:
    path.write_bytes(b"")
    assert read_index(path) == []


def test_the_next_append_after_a_cut_starts_a_line(path: Path) -> None:
    path.write_bytes(append_line(ENTRY) + append_line(LOST)[:9])
    assert cut_torn_line(path) == 9
    with path.open("ab") as file:
        file.write(append_line(LOST))
    assert read_index(path) == [ENTRY, LOST]
    assert cut_torn_line(path) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (append_line(ENTRY)[:30] + b"\n", "line 2: not valid JSON"),
        (b"\n", "line 2: not valid JSON"),
        (b"\xff\xfe\n", "line 2: not valid JSON"),
        (b"[]\n", "line 2: expected a JSON object, found an array"),
        (b"{}\n", "line 2: field 'sequence' is missing"),
        (
            append_line(ENTRY).replace(b'"sequence":7', b'"sequence":true'),
            "line 2: field 'sequence': expected int, found True",
        ),
        (
            append_line(ENTRY).replace(b"[[0,2]]", b"[[0,2,3]]"),
            "line 2: field 'missing': expected 2 values, found 3",
        ),
    ],
)
def test_a_broken_line_in_the_middle_is_named(path: Path, line: bytes, message: str) -> None:
    path.write_bytes(append_line(ENTRY) + line + append_line(LOST))
    with pytest.raises(FormatError) as caught:
        read_index(path)
    assert str(caught.value).startswith(f"{path}: {message}")


COMPLETE = IndexEntry(9, "000000/x.hsc", "r", 4, 4, True, None, (), 100, 70, 1003.0)


def what_comes_of(read: Callable[[], list[IndexEntry]]) -> list[IndexEntry] | str:
    """The entries, or the message of the refusal."""
    try:
        return read()
    except FormatError as error:
        return str(error)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, False),
        ({"a_later_key": 1}, False),
        ({"published": 1003}, False),
        ({"prompt_tokens": 3}, False),
        ({"prompt_tokens": True}, True),
        ({"rows_behind": 1}, False),
        ({"rows_behind": None}, True),
        ({"rows": True}, True),
        ({"rid": None}, True),
        ({"missing": [[0]]}, True),
        ({"complete": 1}, True),
    ],
)
def test_lines_of_complete_captures_are_checked_like_any_other(
    path: Path, changes: dict[str, object], refused: bool
) -> None:
    """They are read by a shorter way, which must not let through what the longer one refuses."""
    line = json.dumps({**json.loads(append_line(COMPLETE)), **changes}).encode()
    path.write_bytes(line + b"\n")
    found = what_comes_of(lambda: read_index(path))
    assert found == what_comes_of(lambda: [IndexEntry.from_json(line, f"{path}: line 1")])
    assert isinstance(found, str) == refused
    answer = {name: changes[name] for name in changes if name in ("prompt_tokens", "rows_behind")}
    assert refused or found == [replace(COMPLETE, **answer)]
