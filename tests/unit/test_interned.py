"""No name of a capture is interned by what sees millions of them: that would fragment the heap.

The cause and the rule are in hs_capture/format/catalog.py; benchmarks/extract_memory.py measures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capture_files import states, write_capture, write_run
from hs_capture import open_store, stream
from hs_capture.dataset import HiddenStatesDataset
from hs_capture.export.formats import format_named
from hs_capture.export.plan import Wish, make_plan
from hs_capture.export.run import run
from hs_capture.extract.arrivals import Arrivals
from hs_capture.extract.drain import Drain
from hs_capture.format.codec import encode
from hs_capture.format.container import ContainerWriter
from hs_capture.ring.message import Opened, StreamSpec
from hs_capture.writer.config import WriterConfig
from hs_capture.writer.publisher import Publisher
from hs_capture.writer.record import Record


@contextmanager
def interned() -> Iterator[list[str]]:
    """What is interned by Python code meanwhile."""
    names: list[str] = []
    intern = sys.intern

    def spy(name: str, /) -> str:
        names.append(name)
        return intern(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "intern", spy)
        yield names


def of_captures(names: list[str]) -> list[str]:
    return [name for name in names if "00000000" in name]


def dump_of(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "dump")
    for number in range(3):
        rows = states(4, seed=number)
        write_capture(folder, number, f"r{number}", {"layer.1": rows, "final.pre_norm": rows + 1})
    return folder.parent


def read(dump: Path) -> None:
    for capture in open_store(dump):
        capture.last_hidden_states("pre_norm")


def train(dump: Path) -> None:
    dataset = HiddenStatesDataset(dump, final="pre_norm")
    for number in range(len(dataset)):
        dataset.capture(number).last_hidden_states("pre_norm")


def follow(dump: Path) -> None:
    for capture in stream(dump, idle_seconds=0.0):
        capture.last_hidden_states("pre_norm")


def consume(dump: Path) -> None:
    for capture in stream(dump, delete=True, idle_seconds=0.0):
        capture.last_hidden_states("pre_norm")
    assert not list(dump.glob("*/*/*"))


def drain(dump: Path) -> None:
    done = Drain(dump, dump.parent / "out")
    assert done.drain() == 3


def export(dump: Path) -> None:
    output = dump.parent / "exported"
    plan = make_plan(open_store(dump), format_named("safetensors"), Wish())
    assert run(plan, output, workers=1).written == 3


def sweep(dump: Path) -> None:
    """Extract removes what nobody waits for."""
    Arrivals(dump, lambda _: True).look()
    assert not list(dump.glob("*/*/*"))


@pytest.mark.parametrize("use", [read, train, follow, consume, drain, export, sweep])
def test_captures_are_used(tmp_path: Path, use: Callable[[Path], None]) -> None:
    dump = dump_of(tmp_path)
    with interned() as names:
        use(dump)
    assert of_captures(names) == []


def test_captures_are_written(tmp_path: Path) -> None:
    config = WriterConfig(
        ring=-1,
        bell=-1,
        run_dir=str(tmp_path),
        rank="tp0",
        file_mode=0o600,
        reserve_bytes=0,
        workers=1,
        server_pid=1,
        streams=(StreamSpec("layer.1", "float32", 2),),
        splits_planes=False,
        metadata={},
    )
    publisher = Publisher(config)
    with interned() as names:
        container = ContainerWriter(f"{tmp_path}/tp0-00000000.part")
        container.declare("layer.1", "float32", 2)
        container.add("layer.1", 0, 1, encode(states(1, 2), "float32"))
        publisher.publish(Record(Opened(0, "r", 1, 0), container, covered=[(0, 1)]))
    publisher.close()
    assert [path.name for path in tmp_path.glob("*/*")] == ["000000000-r.hsc"]
    assert of_captures(names) == []


def test_interned_names_are_seen(tmp_path: Path) -> None:
    """A Path is what must not be made."""
    with interned() as names:
        str(tmp_path / "000000000-r.hsc")
    assert names.count("000000000-r.hsc") == 1
