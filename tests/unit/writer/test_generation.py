"""Rows of generated tokens: how they lie in an entry, how they wait, and how they become blocks."""

from __future__ import annotations

import logging
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_capture.faults import FaultLog
from hs_capture.format.container import ContainerReader
from hs_capture.format.index import read_index
from hs_capture.ring.consumer import Consumer
from hs_capture.ring.message import Closed, Message, Opened, Segment, StreamSpec
from hs_capture.ring.producer import Producer
from hs_capture.writer import answers
from hs_capture.writer.assembler import Assembler
from hs_capture.writer.config import TOKENS, WriterConfig
from hs_capture.writer.generation import Generation, RowLayout
from hs_capture.writer.publisher import Publisher

STREAMS = (TOKENS, StreamSpec("layer.1", "bfloat16", 3), StreamSpec("final.pre_norm", "float32", 2))
REQUESTS, PROMPT, ANSWER = 5, 4, 60


def payload(ids: list[int], splits_planes: bool) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The payload of rows of these tokens, and of each row the bytes of its two states."""
    chance = np.random.default_rng(sum(ids))
    parts = [np.array(ids, "<i8").view(np.uint8).reshape(len(ids), 1, 8)]
    parts += [
        chance.integers(0, 256, (len(ids), width, size), np.uint8)
        for width, size in ((3, 2), (2, 4))
    ]
    rows = [(parts[1][i].tobytes(), parts[2][i].tobytes()) for i in range(len(ids))]
    if splits_planes:
        parts = [part.transpose(2, 0, 1) for part in parts]
    return b"".join(part.tobytes() for part in parts), rows


def joined(planes: tuple[bytes, ...]) -> bytes:
    """The elements whose byte planes these are."""
    return bytes(np.stack([np.frombuffer(plane, np.uint8) for plane in planes], -1))


@pytest.mark.parametrize("splits_planes", [False, True])
def test_rows_are_taken_apart_and_put_together_again(splits_planes: bool) -> None:
    layout = RowLayout(STREAMS, splits_planes)
    # A sampler that fails may give -1.
    ids = [5, 2**40 + 3, -1]
    data, expected = payload(ids, splits_planes)
    rows = [layout.row(memoryview(data), 3, i) for i in range(3)]
    assert [layout.token_of(row) for row in rows] == ids
    assert {len(row) for row in rows} == {layout.row_bytes} == {8 + 6 + 8}
    found = list(layout.streams_of([rows[2], rows[0]]))
    assert [stream.name for stream, _ in found] == ["layer.1", "final.pre_norm"]
    for place, (_, planes) in enumerate(found):
        assert joined(planes) == expected[2][place] + expected[0][place]
        assert len(planes) == ((2, 4)[place] if splits_planes else 1)


@pytest.mark.parametrize(
    ("width", "rows"), [(128, 256), (2048, 16), (100_000, 16)], ids=["small", "middle", "large"]
)
def test_a_block_has_sixteen_rows_or_more(width: int, rows: int) -> None:
    streams = (TOKENS, StreamSpec("layer.1", "float32", width))
    assert RowLayout(streams, splits_planes=True).block_rows == rows


@given(st.lists(st.integers(0, 11), unique=True), st.integers(0, 12))
def test_what_waits_is_taken_in_runs_but_for_the_last(positions: list[int], below: int) -> None:
    """Against a plain walk; nobody knows of the last row whether it is of a token."""
    generation = Generation(prompt=10)
    for number in positions:
        generation.add(10 + number, 100 + number, bytes([number]))
    last = max(positions, default=0)
    taken = list(generation.take())
    runs = [[row[0] for row in rows] for _, rows in taken]
    assert [start - 10 for start, _ in taken] == [run[0] for run in runs]
    assert [n for run in runs for n in run] == sorted(n for n in positions if n != last)
    assert all(b[0] > a[-1] + 1 for a, b in pairwise(runs))
    assert generation.waiting == bool(positions)
    left = [row for _, rows in generation.take(below=10 + below) for row in rows]
    assert left == ([bytes([last])] if positions and last < below else [])
    assert generation.waiting == 0


def test_tokens_are_sure_when_another_one_follows() -> None:
    generation = Generation(prompt=3)
    assert generation.known().tolist() == []
    for position in (3, 4, 5, 7):
        generation.add(position, position * 10, b"")
    assert generation.known().tolist() == [30, 40, 50]
    generation.add(6, 60, b"")
    assert generation.known().tolist() == [30, 40, 50, 60]


@pytest.mark.parametrize(
    ("said", "agreeing"),
    [([30, 40, 50], 3), ([30, 40], 2), ([30, 41, 50], 1), ([31], 0), ([30, 40, 9, 60, 71], 3 + 1)],
)
def test_tokens_that_ran_as_others_are_found(said: list[int], agreeing: int) -> None:
    """One whose row did not come may have been any."""
    generation = Generation(prompt=3)
    for position in (3, 4, 6, 7):
        generation.add(position, position * 10, b"")
    assert generation.agreeing(said) == agreeing


def test_a_token_that_is_none_is_not_taken_for_one_that_did_not_come() -> None:
    generation = Generation(prompt=3)
    for position, token in ((3, 30), (4, -1), (5, 50)):
        generation.add(position, token, b"")
    assert generation.agreeing([30, 40, 50]) == 1
    assert generation.known().tolist() == [30, -1]


def test_rows_that_wait_are_stored_before_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many conversations at once: blocks are then smaller, and nothing else is."""
    monkeypatch.setattr(answers, "WAITING_BYTES", 50 * (8 + 6 + 8))
    producer = Producer(1 << 20)
    settings = config(tmp_path)
    publisher = Publisher(settings)
    ring = Consumer(producer.descriptor)
    faults = FaultLog(logging.getLogger("hs_capture.test_generation"))
    rows: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    with ThreadPoolExecutor(2) as pool:
        writer = Assembler(settings, ring, publisher, pool, faults)

        def waiting() -> int:
            assert writer._answers is not None
            return writer._answers._waiting

        def send(message: Message, ids: list[int], more: list[int]) -> None:
            data, states = payload(ids, splits_planes=False)
            for segment in message.segments:
                for at in range(segment.start, segment.stop):
                    rows[segment.key, at] = states[segment.row + at - segment.start]
            data += array("q", more).tobytes()
            encoded = message.encode()
            slot = producer.reserve(len(encoded), len(data))
            assert slot is not None
            slot.payload[:] = data
            producer.publish(slot, encoded)
            for entry in ring.entries():
                writer.apply(entry)

        keys = range(REQUESTS)
        opened = [Opened(key, f"r{key}", PROMPT, 0) for key in keys]
        prompts = [100 * key + i for key in keys for i in range(PROMPT)]
        segments = [Segment(key, 0, PROMPT, key * PROMPT) for key in keys]
        send(Message(opened, len(prompts), segments), prompts, prompts)
        for number in range(ANSWER):
            at = PROMPT + number
            segments = [Segment(key, at, at + 1, key) for key in keys]
            send(Message([], REQUESTS, segments), [1000 * key + number for key in keys], [])
            assert waiting() <= 50
        closed = [Closed(key, f"r{key}", PROMPT + ANSWER - 1, None, ANSWER) for key in keys]
        said = [1000 * key + number for key in keys for number in range(ANSWER)]
        send(Message(closed=closed), [], said)
        assert waiting() == 0
    assert faults.count == 0
    assert ring.drained
    publisher.close()
    os.close(producer.descriptor)
    lines = read_index(tmp_path / "index-tp0.jsonl")
    assert sorted(line.rid for line in lines) == [f"r{key}" for key in keys]
    for line in lines:
        assert (line.complete, line.num_tokens, line.prompt_tokens) == (True, 63, PROMPT)
        assert line.rows_behind == 1
        key = int(line.rid[1:])
        with ContainerReader(tmp_path / str(line.file)) as reader:
            assert 5 < len(reader.streams["layer.1"].blocks) < ANSWER
            assert reader.read("input_ids")[PROMPT:].tolist() == said[60 * key : 60 * key + 60]
            for place, name in enumerate(("layer.1", "final.pre_norm")):
                found = reader.read(name)
                assert [row.tobytes() for row in found] == [
                    rows[key, at][place] for at in range(PROMPT + ANSWER)
                ]


def config(run_dir: Path) -> WriterConfig:
    base = WriterConfig(
        ring=-1,
        bell=-1,
        run_dir=str(run_dir),
        rank="tp0",
        file_mode=0o600,
        reserve_bytes=0,
        workers=1,
        server_pid=os.getpid(),
        streams=(),
        splits_planes=False,
        metadata={},
    )
    assert not base.follows_decode
    whole = replace(base, streams=STREAMS)
    assert WriterConfig.decode(whole.encode()) == whole
    assert whole.follows_decode
    return whole
