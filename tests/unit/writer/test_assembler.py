"""Chunks in any order become records: the assembler against a plain model."""

from __future__ import annotations

import logging
import os
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from capture_server import wait_until
from hs_capture.faults import FaultLog
from hs_capture.format.codec import Encoded, encode
from hs_capture.format.container import ContainerReader
from hs_capture.format.index import IndexEntry, append_line, read_index
from hs_capture.ring.consumer import Consumer
from hs_capture.ring.message import Closed, Lost, Message, Opened, Segment, StreamSpec
from hs_capture.ring.producer import Producer
from hs_capture.writer import assembler, block
from hs_capture.writer import config as writer_config
from hs_capture.writer.assembler import Assembler
from hs_capture.writer.config import WriterConfig
from hs_capture.writer.publisher import Publisher

METADATA: dict[str, object] = {
    "layer_ids": [1],
    "final": ["pre_norm"],
    "hidden_size": 3,
    "dtype": "float32",
    "run_id": "run-a",
    "rank": "tp0",
    "hs_capture_version": "0.1.0",
    "sglang_version": "0.5.23",
    "model_class": "DeepseekV2ForCausalLM",
}
WIDTH = 3
STREAMS = (StreamSpec("layer.1", "float32", WIDTH), StreamSpec("final.pre_norm", "float32", WIDTH))


def config(run_dir: Path) -> WriterConfig:
    return WriterConfig(
        ring=-1,
        bell=-1,
        run_dir=str(run_dir),
        rank="tp0",
        file_mode=0o600,
        reserve_bytes=0,
        workers=2,
        server_pid=os.getpid(),
        streams=STREAMS,
        splits_planes=False,
        metadata=METADATA,
    )


def states(key: int, start: int, stop: int) -> NDArray[np.float32]:
    """[streams, rows, width]: every element tells whose it is."""
    stream, row, column = np.ogrid[: len(STREAMS), start:stop, :WIDTH]
    return (key * 1000 + row * 10 + stream * 5 + column).astype("<f4")


def ids(opened: Opened) -> NDArray[np.int64]:
    return np.arange(opened.num_tokens, dtype="<i8") + 1000 * opened.key


class Bench:
    """An assembler fed through a real ring."""

    def __init__(self, run_dir: Path, pool: ThreadPoolExecutor) -> None:
        self.run_dir = run_dir
        self.producer = Producer(1 << 20)
        self.ring = Consumer(self.producer.descriptor)
        self.publisher = Publisher(config(run_dir))
        self.faults = FaultLog(logging.getLogger("hs_capture.test_assembler"))
        self.assembler = Assembler(config(run_dir), self.ring, self.publisher, pool, self.faults)

    def send(self, message: Message) -> None:
        """Publish a message with the payload that belongs to it, and apply it."""
        parts = [states(s.key, s.start, s.stop) for s in message.segments]
        payload = b"".join(
            part[stream].tobytes() for stream in range(len(STREAMS)) for part in parts
        ) + b"".join(ids(opened).tobytes() for opened in message.opened)
        encoded = message.encode()
        slot = self.producer.reserve(len(encoded), len(payload))
        assert slot is not None
        slot.payload[:] = payload
        self.producer.publish(slot, encoded)
        for entry in self.ring.entries():
            self.assembler.apply(entry)

    def index(self) -> list[IndexEntry]:
        return read_index(self.run_dir / "index-tp0.jsonl")


@contextmanager
def bench(run_dir: Path, threads: int = 2) -> Iterator[Bench]:
    """A bench; at the end everything is closed, stored and released."""
    with ThreadPoolExecutor(threads) as pool:
        bench = Bench(run_dir, pool)
        yield bench
        bench.assembler.close_all("server_stopped")
    assert bench.ring.drained
    assert bench.assembler.open_records == 0
    bench.publisher.close()
    os.close(bench.producer.descriptor)
    assert list(run_dir.rglob("*.part")) == []


def rows(*parts: tuple[int, int, int]) -> list[Segment]:
    """Segments of (key, start, stop), one after the other."""
    found, row = [], 0
    for key, start, stop in parts:
        found.append(Segment(key, start, stop, row))
        row += stop - start
    return found


def message(
    parts: list[tuple[int, int, int]] | None = None,
    opened: list[Opened] | None = None,
    lost: list[Lost] | None = None,
    closed: list[Closed] | None = None,
) -> Message:
    segments = rows(*(parts or []))
    count = sum(segment.stop - segment.start for segment in segments)
    return Message(opened or [], count, segments, lost or [], closed or [])


# The model: one request as a set of positions.


@dataclass
class Plain:
    opened: Opened
    covered: set[int] = field(default_factory=set)
    lost: list[Lost] = field(default_factory=list)
    end: str | None = "server_stopped"
    closed: bool = False

    def apply(self, sent: Message) -> None:
        for segment in sent.segments:
            if segment.key == self.opened.key and not self.closed:
                self.covered |= {
                    i for i in range(segment.start, segment.stop) if i < self.opened.num_tokens
                }
        if not self.closed:
            self.lost += [lost for lost in sent.lost if lost.key == self.opened.key]
        for closed in sent.closed:
            if closed.key == self.opened.key:
                self.closed, self.end = True, closed.reason

    @property
    def missing(self) -> set[int]:
        return set(range(self.opened.num_tokens)) - self.covered

    @property
    def reason(self) -> str | None:
        if not self.missing:
            return None
        for lost in self.lost:
            if self.missing & set(range(lost.start, lost.stop)):
                return lost.reason
        if self.end is not None:
            return self.end
        return "prefix_cache" if max(self.missing) < self.opened.cached_tokens else "unknown"


requests = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=4).map(
    lambda sizes: [
        Opened(key, f"r{key}", length, min(cached, length - 1))
        for key, (length, cached) in enumerate(sizes)
    ]
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Opened], list[Message]]:
    """Requests, and messages in which their rows come, overlap, are lost and end."""
    opened = draw(requests)
    last = len(opened) - 1
    interval = st.tuples(st.integers(0, 34), st.integers(0, 12)).map(lambda p: (p[0], sum(p)))
    part = st.tuples(st.integers(0, last), interval).map(lambda p: (p[0], *p[1]))
    lost = st.builds(
        lambda part, reason: Lost(*part, reason),
        part.filter(lambda p: p[1] < p[2]),
        st.sampled_from(["dropped", "hook_error"]),
    )
    ends = {key: draw(st.sampled_from([None, "aborted", "never"])) for key in range(len(opened))}
    messages = [message(opened=[one]) for one in opened]
    messages += [
        message(draw(st.lists(part, max_size=4)), lost=draw(st.lists(lost, max_size=1)))
        for _ in range(draw(st.integers(0, 8)))
    ]
    for key, end in ends.items():
        if end != "never":
            closed = Closed(key, f"r{key}", opened[key].num_tokens, end)
            at = draw(st.integers(len(opened) - 1, len(messages) - 1))
            messages[at] = replace(messages[at], closed=[*messages[at].closed, closed])
    return opened, messages


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_records_are_what_a_plain_model_says(
    history: tuple[list[Opened], list[Message]],
) -> None:
    """Any order of chunks, with overlaps (a retracted request), losses, and rows after the end."""
    opened, messages = history
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        model = [Plain(one) for one in opened]
        with bench(run_dir) as running:
            for sent in messages:
                running.send(sent)
                for plain in model:
                    plain.apply(sent)
        lines = {line.rid: line for line in running.index()}
        assert len(lines) == len(running.index()) == len(opened)
        assert running.faults.count == 0
        for plain in model:
            line = lines[plain.opened.rid]
            assert {i for pair in line.missing for i in range(*pair)} == plain.missing
            assert line.rows == len(plain.covered)
            assert line.complete is (not plain.missing)
            assert line.incomplete_reason == plain.reason
            assert line.file is not None
            with ContainerReader(run_dir / line.file) as reader:
                _assert_stored(reader, plain)


def _assert_stored(reader: ContainerReader, plain: Plain) -> None:
    key, length = plain.opened.key, plain.opened.num_tokens
    reader.check()
    assert reader.read("input_ids").tolist() == ids(plain.opened).tolist()
    assert reader.metadata["missing"] == [list(pair) for pair in _pairs(plain.missing)]
    for number, stream in enumerate(STREAMS):
        assert reader.streams[stream.name].shape == (length, WIDTH)
        assert {i for pair in reader.covered(stream.name) for i in range(*pair)} == plain.covered
        for start, stop in reader.covered(stream.name):
            read = reader.read(stream.name, start, stop)
            assert np.array_equal(read, states(key, start, stop)[number])


def _pairs(positions: set[int]) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for position in sorted(positions):
        if pairs and pairs[-1][1] == position:
            pairs[-1] = (pairs[-1][0], position + 1)
        else:
            pairs.append((position, position + 1))
    return pairs


def test_an_entry_stays_in_the_ring_until_its_captures_are_published(tmp_path: Path) -> None:
    """What closes a request is released after the index names it: a later writer knows."""
    one = Opened(0, "r0", 4, 0)
    with bench(tmp_path) as running:
        seen = []
        give_back = running.ring.release

        def release(entry: object) -> None:
            seen.append((entry, len(running.index())))
            give_back(entry)  # type: ignore[arg-type]

        running.ring.release = release  # type: ignore[method-assign]
        running.send(message([(0, 0, 4)], opened=[one], closed=[Closed(0, "r0", 4)]))
        entry = seen[0][0]
    assert seen[-1] == (entry, 1)


def test_the_end_of_a_request_that_nobody_knows_is_told(tmp_path: Path) -> None:
    with bench(tmp_path) as running:
        running.send(message([(7, 2, 4)], closed=[Closed(7, "seven", 4)]))
        running.send(message(lost=[Lost(8, 0, 1, "dropped")]))
    (line,) = running.index()
    assert (line.rid, line.file, line.rows) == ("seven", None, 0)
    assert (line.incomplete_reason, line.missing) == ("writer_died", ((0, 4),))


def test_a_request_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    one = Opened(0, "r0", 6, 0)
    with bench(tmp_path) as running:
        running.send(message([(0, 0, 3)], opened=[one]))
        running.send(message([(0, 3, 6)], opened=[one], closed=[Closed(0, "r0", 6)]))
    (line,) = running.index()
    assert (line.complete, line.rows) == (True, 6)


@contextmanager
def descriptors(spare: int) -> Iterator[None]:
    """So many more files may be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_cannot_be_created_costs_its_request_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No descriptor is free for a moment: the writer goes on, and the index says why."""
    first, second = Opened(0, "r0", 4, 0), Opened(1, "r1", 4, 0)
    with bench(tmp_path) as running:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        running.send(message([(0, 0, 2)], opened=[first]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            running.send(message(closed=[Closed(0, "r0", 4, "aborted")]))
            wait_until(lambda: running.faults.count > 0, "the failure")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        running.send(message([(1, 0, 4)], opened=[second], closed=[Closed(1, "r1", 4)]))
    lines = {line.rid: line for line in running.index()}
    assert lines["r1"].complete
    assert (lines["r0"].file, lines["r0"].incomplete_reason) == (None, "write_error")
    assert running.faults.count == 1
    assert "could not be published: OSError: [Errno 24]" in str(running.faults.last)
    # The logged traceback holds on to the ring.
    caplog.clear()


def test_thousands_of_short_prompts_need_few_open_files(tmp_path: Path) -> None:
    """All of them begin in one batch, and end in the next one."""
    opened = [Opened(key, f"r{key}", 2, 0) for key in range(2000)]
    with bench(tmp_path) as running, descriptors(8):
        running.send(message([(key, 0, 1) for key in range(2000)], opened=opened))
        running.send(
            message(
                [(key, 1, 2) for key in range(2000)],
                closed=[Closed(key, f"r{key}", 2) for key in range(2000)],
            )
        )
        wait_until(lambda: running.ring.drained, "an empty ring")
    lines = running.index()
    assert len(lines) == 2000
    assert all(line.complete for line in lines)
    assert running.faults.count == 0


def test_what_an_earlier_writer_told_is_not_told_again(tmp_path: Path) -> None:
    """It died before it gave the ring back, and before it named one of its files in the index."""
    whole, broken_off, lost = Opened(0, "r", 4, 0), Opened(1, "r", 4, 0), Opened(2, "r", 4, 0)
    new = Opened(3, "r", 4, 0)
    ends = [Closed(0, "r", 4), Closed(1, "r", 4, "aborted")]
    with bench(tmp_path) as first:
        first.send(message([(0, 0, 4), (1, 0, 2)], opened=[whole, broken_off], closed=ends))
        first.send(message(closed=[Closed(2, "r", 4)]))
    index = tmp_path / "index-tp0.jsonl"
    told = [line for line in first.index() if line.key == 1]
    named = [line for line in first.index() if line.key != 1]
    index.write_bytes(b"".join(append_line(line) for line in named))
    with bench(tmp_path) as second:
        assert [line.file for line in second.index()] == [line.file for line in [*named, *told]]
        again = message(
            [(0, 0, 4), (1, 0, 2), (3, 0, 4)], opened=[whole, broken_off, lost, new], closed=ends
        )
        second.send(again)
        second.send(message(closed=[Closed(2, "r", 4), Closed(3, "r", 4)]))
        assert second.ring.region.counters()["rows_late"] == 0
    lines = second.index()
    assert sorted(str(line.key) for line in lines) == ["0", "1", "2", "3"]
    assert {line.key: line.incomplete_reason for line in lines} == {
        0: None,
        1: "aborted",
        2: "writer_died",
        3: None,
    }
    assert len(list(tmp_path.rglob("*.hsc"))) == 3
    assert second.publisher.counters["captures"] == 3
    assert second.publisher.counters["lost"] == 1


def test_a_thread_that_dies_over_a_block_costs_its_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even what is no ordinary error never makes a file that lacks the block."""
    planted = [True]

    def encode_or_die(data: memoryview, dtype: str) -> Encoded:
        if dtype == "float32" and planted:
            planted.clear()
            raise SystemExit
        return encode(data, dtype)

    monkeypatch.setattr(assembler, "encode", encode_or_die)
    first, second = Opened(0, "r0", 4, 0), Opened(1, "r1", 4, 0)
    with bench(tmp_path) as running:
        running.send(message([(0, 0, 4)], opened=[first], closed=[Closed(0, "r0", 4)]))
        wait_until(lambda: running.ring.drained, "an empty ring")
        running.send(message([(1, 0, 4)], opened=[second], closed=[Closed(1, "r1", 4)]))
    lines = {line.rid: line for line in running.index()}
    assert lines["r1"].complete
    assert (lines["r0"].file, lines["r0"].incomplete_reason) == (None, "write_error")
    assert running.faults.count == 1
    caplog.clear()


def test_a_block_that_cannot_be_compressed_costs_none_of_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that go to a thread together."""
    bad = states(1, 0, 4)[0].tobytes()

    def encode_all_but_one(data: memoryview, dtype: str) -> Encoded:
        if data.tobytes() == bad:
            raise MemoryError("planted")
        return encode(data, dtype)

    monkeypatch.setattr(assembler, "encode", encode_all_but_one)
    opened = [Opened(key, f"r{key}", 4, 0) for key in range(3)]
    closed = [Closed(key, f"r{key}", 4) for key in range(3)]
    with bench(tmp_path) as running:
        running.send(message([(key, 0, 4) for key in range(3)], opened=opened, closed=closed))
    told = {line.rid: (line.complete, line.incomplete_reason) for line in running.index()}
    assert told == {"r0": (True, None), "r1": (False, "write_error"), "r2": (True, None)}
    for line in running.index():
        if line.file is not None:
            with ContainerReader(tmp_path / line.file) as reader:
                key = int(line.rid[1:])
                found = [reader.read(stream.name) for stream in STREAMS]
            assert np.array_equal(found, states(key, 0, 4))
    caplog.clear()


def test_a_failure_that_cannot_even_be_noted_costs_what_went_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is stored of them, none passes for whole; the ring is empty, and all goes on."""

    def no_memory(*_: object) -> None:
        raise MemoryError("planted")

    opened = [Opened(key, f"r{key}", 4, 0) for key in range(3)]
    closed = [Closed(key, f"r{key}", 4) for key in range(3)]
    with bench(tmp_path) as running:
        with monkeypatch.context() as patch:
            patch.setattr(assembler, "encode", no_memory)
            patch.setattr(running.faults, "record", no_memory)
            parts = [(key, 0, 4) for key in range(2)]
            running.send(message(parts, opened=opened[:2], closed=closed[:2]))
            wait_until(lambda: running.ring.drained, "an empty ring")
        running.send(message([(2, 0, 4)], opened=opened[2:], closed=closed[2:]))
    told = {line.rid: (line.complete, line.incomplete_reason) for line in running.index()}
    assert told == {"r0": (False, "write_error"), "r1": (False, "write_error"), "r2": (True, None)}
    assert running.assembler.pending_blocks == 0
    caplog.clear()


@given(sizes=st.lists(st.integers(0, 40), max_size=30))
def test_a_thread_gets_as_many_blocks_as_make_a_task(sizes: list[int]) -> None:
    """In their order, each once; a task ends with the block that fills it."""
    blocks: Any = [FakeBlock(number, size) for number, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "TASK_BYTES", 50)
        tasks: Any = list(block.tasks(blocks))
    assert [block for task in tasks for block in task] == blocks
    filled = [sum(block.size for block in task) for task in tasks]
    assert all(size >= 50 for size in filled[:-1])
    assert all(sum(block.size for block in task[:-1]) < 50 for task in tasks)


@dataclass(frozen=True)
class FakeBlock:
    number: int
    size: int


def test_no_more_threads_compress_than_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many may be busy: the others write."""
    now, most = [], []

    def encode_slowly(data: memoryview, dtype: str) -> Encoded:
        now.append(None)
        most.append(len(now))
        time.sleep(0.002)
        now.pop()
        return encode(data, dtype)

    monkeypatch.setattr(assembler, "encode", encode_slowly)
    monkeypatch.setattr(block, "TASK_BYTES", 1)
    opened = [Opened(key, f"r{key}", 4, 0) for key in range(8)]
    with bench(tmp_path, threads=4) as running:
        running.send(message([(key, 0, 4) for key in range(8)], opened=opened))
    assert max(most) == config(tmp_path).workers == 2


def test_threads_share_the_blocks_of_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is compressed only while another one of the same request is."""
    meeting = threading.Barrier(2, timeout=60)
    met = []

    def encode_together(data: memoryview, dtype: str) -> Encoded:
        # The token ids are one block, which has no other to meet.
        if dtype == "float32":
            meeting.wait()
            met.append(threading.get_ident())
        return encode(data, dtype)

    monkeypatch.setattr(assembler, "encode", encode_together)
    monkeypatch.setattr(block, "TASK_BYTES", 1)
    monkeypatch.setattr(assembler, "rows_per_block", lambda _: 3)
    one = Opened(0, "r0", 21, 0)
    with bench(tmp_path, threads=4) as running:
        running.send(message([(0, 0, 21)], opened=[one], closed=[Closed(0, "r0", 21)]))
    assert len(met) == 2 * 7
    assert len(set(met)) >= 2
    assert running.faults.count == 0
    (line,) = running.index()
    assert (line.complete, line.rows) == (True, 21)
    assert line.file is not None
    with ContainerReader(tmp_path / line.file) as reader:
        assert [len(reader.streams[stream.name].blocks) for stream in STREAMS] == [7, 7]
        found = [reader.read(stream.name) for stream in STREAMS]
        assert reader.read("input_ids").tolist() == ids(one).tolist()
    assert np.array_equal(found, states(0, 0, 21))


def test_files_that_a_dead_writer_left_open_are_removed(tmp_path: Path) -> None:
    """Those of another rank stay."""
    folder = tmp_path / "open"
    folder.mkdir()
    for name in ["tp0-0.part", "tp0-12.part", "tp1-0.part"]:
        (folder / name).write_bytes(b"x")
    with ThreadPoolExecutor(1) as pool:
        running = Bench(tmp_path, pool)
        assert [path.name for path in folder.iterdir()] == ["tp1-0.part"]
        running.publisher.close()
        os.close(running.producer.descriptor)


@pytest.mark.parametrize("rows_at_once", [1, 7])
def test_each_chunk_is_stored_as_it_comes(tmp_path: Path, rows_at_once: int) -> None:
    """Nothing waits for the end of the request; readers see one stream."""
    one = Opened(0, "r0", 14, 0)
    with bench(tmp_path) as running:
        running.send(message(opened=[one]))
        for start in range(0, 14, rows_at_once):
            running.send(message([(0, start, start + rows_at_once)]))
        running.send(message(closed=[Closed(0, "r0", 14)]))
    (line,) = running.index()
    assert line.file is not None
    with ContainerReader(tmp_path / line.file) as reader:
        assert len(reader.streams["layer.1"].blocks) == 14 // rows_at_once
        assert reader.covered("layer.1") == [(0, 14)]


def test_a_record_without_news_is_closed_and_what_comes_later_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published once, as aborted; the end of its request tells nothing new."""
    monkeypatch.setattr(writer_config, "RECORD_SECONDS", 0.0)
    one, two = Opened(0, "r0", 6, 0), Opened(1, "r1", 4, 0)
    with bench(tmp_path) as running:
        running.send(message([(0, 0, 2), (1, 0, 3)], opened=[one, two]))
        running.assembler.close_overdue()
        assert running.assembler.open_records == 0
        running.send(message([(0, 2, 6)], closed=[Closed(0, "r0", 6)]))
        running.send(message(closed=[Closed(1, "r1", 4, "aborted")]))
        assert running.ring.region.counters()["rows_late"] == 4
        # The server numbers its requests: a new one is never taken for the old one.
        running.send(message([(2, 0, 4)], opened=[replace(two, key=2)]))
        running.send(message(closed=[Closed(2, "r1", 4)]))
    # Records are published in the order in which the pool is done with them.
    told = Counter((line.rid, line.incomplete_reason, line.missing) for line in running.index())
    assert told == {
        ("r0", "aborted", ((2, 6),)): 1,
        ("r1", "aborted", ((3, 4),)): 1,
        ("r1", None, ()): 1,
    }


def test_a_record_with_news_stays_open(tmp_path: Path) -> None:
    one = Opened(0, "r0", 4, 0)
    with bench(tmp_path) as running:
        running.send(message([(0, 0, 2)], opened=[one]))
        running.assembler.close_overdue()
        running.send(message([(0, 2, 4)], closed=[Closed(0, "r0", 4)]))
        assert running.ring.region.counters()["rows_late"] == 0
    (line,) = running.index()
    assert line.complete


def test_nothing_is_kept_of_requests_that_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole ones, aborted ones, one without a file, some whose news came late, some of a dead
    writer."""
    monkeypatch.setattr(writer_config, "RECORD_SECONDS", 0.0)
    with bench(tmp_path) as running:
        for key in range(0, 500, 5):
            opened = [Opened(k, f"r{k}", 4, 0) for k in range(key, key + 3)]
            # Its file is there already, so it cannot be created.
            (tmp_path / "open" / f"tp0-{key + 2}.part").touch()
            running.send(message([(key, 0, 4), (key + 1, 0, 2)], opened=opened))
            running.assembler.close_overdue()
            ends = [Closed(k, f"r{k}", 4, "aborted") for k in range(key, key + 4)]
            running.send(message(closed=ends))
        kept = {n: len(v) for n, v in vars(running.assembler).items() if isinstance(v, dict | set)}
        assert kept == {"_open": 0, "_overdue": 0}
        wait_until(lambda: len(running.index()) == 400, "the end of every request")
        for in_the_way in (tmp_path / "open").iterdir():
            in_the_way.unlink()
    assert running.assembler.pending_blocks == 0
    assert len(running.index()) == 400
    # The traceback of the error that was logged holds the ring.
    caplog.clear()
