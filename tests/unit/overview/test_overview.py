"""`hs-capture inspect` tells the true numbers, and its page needs nothing but itself."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from capture_files import RUN, states, write_capture
from hs_capture import open_store
from hs_capture.cli import main
from hs_capture.format.container import ContainerReader
from hs_capture.overview.gather import gather
from hs_capture.overview.page import to_html
from hs_capture.overview.table import to_text
from unit.export.stores import streams, write_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four complete captures, one with a large channel, and two that are not complete."""
    folder = write_store(tmp_path / "store", (5, 7, 3))
    run = folder / RUN.run_id
    outlier = streams(9, seed=7)
    outlier["layer.3"] = states(9) * np.float32(0)
    outlier["layer.3"][:, 2] = 100.0
    write_capture(run, 3, "outlier", outlier)
    write_capture(run, 4, "a", streams(4), missing=[(0, 2)], reason="prefix_cache")
    write_capture(run, 5, "b", streams(6), missing=[(3, 6)], reason="aborted")
    return folder


def test_the_index_gives_the_counts(store: Path) -> None:
    overview = gather(open_store(store), 10)
    assert (len(overview.lengths), overview.complete) == (6, 4)
    assert overview.lengths.tolist() == [5, 7, 3, 9, 4, 6]
    assert overview.reasons == {"prefix_cache": 1, "aborted": 1}
    entries = list(open_store(store).entries())
    assert overview.raw.tolist() == [entry.raw_bytes for entry in entries]
    assert overview.stored.tolist() == [entry.stored_bytes for entry in entries]


def test_norms_and_channels_are_those_of_the_states(store: Path) -> None:
    overview = gather(open_store(store), 10)
    assert overview.sampled == 4
    assert [kind.name for kind in overview.states] == [
        "layer 1",
        "layer 3",
        "layer 4",
        "final, pre-norm",
    ]
    third = overview.states[1]
    rows = np.concatenate(
        [
            capture.aux_hidden_states(layers=[3])[:, 0].numpy()
            for capture in open_store(store)
            if capture.complete
        ]
    )
    norms = np.linalg.norm(rows, axis=1)
    assert third.norms == pytest.approx(np.quantile(norms, (0, 0.25, 0.5, 0.75, 1)), rel=1e-5)
    means = np.abs(rows).mean(0)
    assert third.channels[0] == (2, pytest.approx(means[2], rel=1e-5))
    assert [channel for channel, _ in third.channels] == np.argsort(-means).tolist()


def test_a_sample_is_spread_over_the_store(store: Path) -> None:
    for rid in ("r0", "outlier"):
        path = open_store(store)[rid].path
        path.write_bytes(path.read_bytes()[:-1])
    assert gather(open_store(store), 1).sampled == 0
    overview = gather(open_store(store), 3)
    assert overview.sampled == 1
    assert len(overview.unreadable) == 2


def test_one_wrong_byte_in_token_ids_is_damage(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A capture whose file is gone was taken away, which is none."""
    arguments = ["inspect", "--store", str(store)]
    assert main(arguments) == 0
    capsys.readouterr()
    path = open_store(store)["r1"].path
    with ContainerReader(path) as reader:
        offset = reader.streams["input_ids"].blocks[0].offset
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    assert main(arguments) == 2
    unreadable = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("unreadable")
    ]
    assert len(unreadable) == 1
    assert unreadable[0].startswith(f"unreadable   {path}: stream 'input_ids'")
    opened = open_store(store)
    path.unlink()
    overview = gather(opened, 10)
    assert (overview.sampled, len(overview.unreadable), overview.damaged) == (3, 1, 0)


def test_the_table_says_it_in_words(store: Path) -> None:
    text = to_text(gather(open_store(store), 10))
    assert "captures     6, of which complete 4\n" in text
    assert "incomplete   1 prefix_cache\n" in text
    assert "tokens       34 (3 to 9 a capture, median 5)\n" in text
    assert re.search(r"layer 3 +\S+ +\S+ +100  2: ", text)


def test_the_page_is_whole_and_refers_to_nothing_outside(store: Path, tmp_path: Path) -> None:
    write_capture(store / RUN.run_id, 6, "c", streams(2), missing=[(0, 1)], reason="<b>&odd")
    page = tmp_path / "report.html"
    assert main(["inspect", "--store", str(store), "--html", str(page)]) == 0
    text = page.read_text()
    assert not re.search(r"(src|href)=|@import|url\(|<script", text)
    assert "<b>&odd" not in text
    assert "&lt;b&gt;&amp;odd" in text
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    # Lengths, ratio, time, reasons, norms, and the channels of four kinds of states.
    assert len(plots) == 9
    for plot in plots:
        for rectangle in ET.fromstring(plot).iter("rect"):
            width, height = float(rectangle.get("width", -1)), float(rectangle.get("height", -1))
            assert math.isfinite(width)
            assert 0 <= width <= 640
            assert 0 <= height <= 220


def test_the_columns_of_lengths_count_every_capture(store: Path) -> None:
    text = to_html(gather(open_store(store), 10))
    first = re.findall(r"<svg.*?</svg>", text, re.DOTALL)[0]
    counts = re.findall(r"<title>\d[\d.]*: (\d+) captures</title>", first)
    assert sum(map(int, counts)) == 6


def test_a_store_of_one_capture_and_an_empty_one_have_pages_too(tmp_path: Path) -> None:
    one = write_store(tmp_path / "one", (1,))
    assert to_html(gather(open_store(one), 10)).count("<svg") == 8
    bare = write_store(tmp_path / "bare", (3,), layers=())
    assert [kind.name for kind in gather(open_store(bare), 10).states] == ["final, pre-norm"]
    (bare / RUN.run_id / "index-tp0.jsonl").unlink()
    next(bare.rglob("*.hsc")).unlink()
    empty = gather(open_store(bare), 10)
    assert "captures     0, of which complete 0" in to_text(empty)
    assert to_html(empty).count("<svg") == 0


def test_no_store_is_one_line_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--store", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("hs-capture inspect: no captures at")
