"""The ring: what the producer publishes is what the consumer takes, once, in order, intact."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hs_capture.errors import ConfigError, FormatError
from hs_capture.format.counters import COUNTERS
from hs_capture.ring.consumer import Consumer
from hs_capture.ring.layout import ENTRY_HEADER, PAGE, PLACES, EntryWord, Word
from hs_capture.ring.message import Closed, Lost, Message, Opened, Segment, decode
from hs_capture.ring.producer import Producer


@contextmanager
def ring(capacity: int = 2 * PAGE) -> Iterator[Producer]:
    """A ring whose descriptor is closed afterwards."""
    producer = Producer(capacity)
    try:
        yield producer
    finally:
        os.close(producer.descriptor)


def message(name: str) -> bytes:
    return Message(opened=[Opened(0, name, 1, 0)]).encode()


def publish(producer: Producer, name: str, payload: bytes = b"") -> bool:
    """Publish one entry; False when the ring is full."""
    slot = producer.reserve(len(message(name)), len(payload))
    if slot is None:
        return False
    slot.payload[:] = payload
    producer.publish(slot, message(name))
    return True


def test_a_message_survives_the_way() -> None:
    sent = Message(
        opened=[Opened(3, "räd\n\0", 17, 4)],
        rows=5,
        segments=[Segment(3, 4, 9, 0)],
        lost=[Lost(2, 0, 4, "dropped")],
        closed=[Closed(3, "räd\n\0", 17), Closed(2, "", 9, "aborted")],
        error="ValueError: x",
    )
    assert decode(sent.encode()) == sent
    assert decode(Message().encode()) == Message()


def test_entries_come_in_order_and_their_space_comes_back() -> None:
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        assert producer.free == producer.region.capacity == 2 * PAGE
        for i in range(3):
            assert publish(producer, f"r{i}", bytes([i]) * 100)
        entries = list(consumer.entries())
        assert [entry.message.opened[0].rid for entry in entries] == ["r0", "r1", "r2"]
        assert [bytes(entry.payload) for entry in entries] == [bytes([i]) * 100 for i in range(3)]
        assert list(consumer.entries()) == []
        assert not consumer.drained
        for entry in entries:
            consumer.release(entry)
        assert consumer.drained
        assert producer.free == producer.region.capacity


def test_space_is_given_back_from_the_oldest_entry_on() -> None:
    """An entry that is released early keeps its place until all before it are released too."""
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        for i in range(3):
            publish(producer, f"r{i}", bytes(500))
        full = producer.free
        first, second, third = consumer.entries()
        consumer.release(third)
        consumer.release(second)
        assert producer.free == full
        consumer.keep(first)
        consumer.release(first)
        assert producer.free == full
        assert producer.released == 0
        consumer.release(first)
        assert producer.free == producer.region.capacity


def test_a_full_ring_takes_nothing_and_goes_on_once_there_is_room() -> None:
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        count = 0
        while publish(producer, "x", bytes(1000)):
            count += 1
        assert 1 <= count <= 2 * PAGE // 1000
        assert not publish(producer, "x", bytes(1000))
        entries = list(consumer.entries())
        assert len(entries) == count
        for entry in entries:
            consumer.release(entry)
        assert publish(producer, "again", bytes(1000))
        (entry,) = consumer.entries()
        assert entry.message.opened[0].rid == "again"
        consumer.release(entry)


def test_the_largest_entry_always_fits_an_empty_ring() -> None:
    """Wherever in the circle the ring is empty, padding before the entry fits as well."""
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        size = producer.largest_entry - ENTRY_HEADER - len(message("x")) - 64
        for step in range(200):
            for length in (step, size):
                assert publish(producer, "x", bytes(length))
                for entry in consumer.entries():
                    consumer.release(entry)
                assert producer.free == producer.region.capacity


def test_an_entry_of_more_than_half_the_ring_is_an_error() -> None:
    with ring() as producer, pytest.raises(ValueError, match="is over 4096"):
        producer.reserve(10, 4096)


def test_entries_end_before_a_payload_that_is_not_in_place() -> None:
    """Nothing overtakes it either: entries come in their order."""
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        slot = producer.reserve(len(message("late")), 8)
        assert slot is not None
        producer.publish(slot, message("late"), ready=False)
        publish(producer, "next")
        assert list(consumer.entries()) == []
        assert consumer.waiting
        assert not consumer.drained
        slot.payload[:] = b"12345678"
        producer.region.words(slot.position)[EntryWord.READY] = 1
        late, following = consumer.entries()
        assert not consumer.waiting
        assert bytes(late.payload) == b"12345678"
        consumer.release(late)
        consumer.release(following)


def test_a_payload_may_be_in_place_before_its_entry_is_published() -> None:
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        slot = producer.reserve(len(message("early")), 8)
        assert slot is not None
        slot.payload[:] = b"12345678"
        producer.region.words(slot.position)[EntryWord.READY] = 1
        producer.publish(slot, message("early"), ready=False)
        (entry,) = consumer.entries()
        assert bytes(entry.payload) == b"12345678"
        consumer.release(entry)


def test_a_second_consumer_begins_with_what_the_first_did_not_release() -> None:
    with ring() as producer:
        first = Consumer(producer.descriptor)
        for name in "abc":
            publish(producer, name)
        a, b, _ = first.entries()
        first.release(b)
        first.release(a)
        second = Consumer(producer.descriptor)
        assert [entry.message.opened[0].rid for entry in second.entries()] == ["c"]


def test_counters_of_either_side_are_seen_on_the_other() -> None:
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        assert consumer.region.counters() == dict.fromkeys(COUNTERS, 0)
        producer.count("batches")
        producer.count("rows_dropped", 41)
        producer.count("rows_dropped")
        seen = consumer.region.counters()
        assert (seen["batches"], seen["rows_dropped"], seen["hook_errors"]) == (1, 42, 0)
        consumer.tell("tokens", 7)
        consumer.count("rows_late", 3)
        consumer.count("rows_late")
        assert producer.region.counters() == {**seen, "tokens": 7, "rows_late": 4}
        # The next writer goes on from there.
        Consumer(producer.descriptor).count("rows_late", 2)
        assert producer.region.counters()["rows_late"] == 6


def test_every_counter_has_a_word_of_its_own_in_the_header() -> None:
    assert {*PLACES, "queued_bytes"} == set(COUNTERS)
    words = [int(place) for place in PLACES.values()]
    assert len(set(words)) == len(words)
    assert not {*words} & {Word.MAGIC, Word.CAPACITY, Word.HEAD, Word.TAIL}
    assert max(words) < PAGE // 8


def test_what_is_in_the_ring_is_queued_until_it_is_released() -> None:
    with ring() as producer:
        consumer = Consumer(producer.descriptor)
        assert publish(producer, "a", b"x" * 100)
        sent = producer.region.capacity - producer.free
        assert producer.region.counters()["queued_bytes"] == sent > 100
        [entry] = consumer.entries()
        assert consumer.region.counters()["queued_bytes"] == sent
        consumer.release(entry)
        assert producer.region.counters()["queued_bytes"] == 0


def test_another_file_is_no_ring(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * PAGE))
    with path.open("r+b") as file, pytest.raises(FormatError, match="is not a ring"):
        Consumer(file.fileno())


def test_a_ring_that_the_machine_cannot_hold_is_refused_at_once() -> None:
    """The memory is taken when the ring is made; the kernel's refusal becomes a clear one."""
    code = """
import os, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from hs_capture.errors import ConfigError
from hs_capture.ring.producer import Producer
before = os.listdir("/proc/self/fd")
try:
    Producer(2 << 20)
except ConfigError as error:
    print(error)
assert os.listdir("/proc/self/fd") == before
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    assert said == (
        "SGLANG_HS_BUFFER: no memory for a ring of 2097152 bytes (EFBIG); "
        "set a smaller SGLANG_HS_BUFFER or give the container more shared memory\n"
    )
    assert issubclass(ConfigError, ValueError)


@pytest.fixture(scope="module")
def other_process() -> Iterator[socket.socket]:
    """A socket to a process that consumes each ring it is sent."""
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("consumer_child.py")), str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    ours.settimeout(300)
    yield ours
    ours.close()
    assert child.wait(timeout=300) == 0


def ask(connection: socket.socket, producer: Producer, seed: int) -> None:
    socket.send_fds(connection, [str(seed).encode()], [producer.descriptor])


def answer(connection: socket.socket) -> Any:
    import json

    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(65536)
    return json.loads(line)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(0, 3700), min_size=1, max_size=120), seed=st.integers(0, 2**31))
def test_two_processes_agree_on_every_byte(
    other_process: socket.socket, sizes: list[int], seed: int
) -> None:
    """Entries of any size, many times around the circle, released in any order."""
    chance = random.Random(seed)
    with ring() as producer:
        ask(other_process, producer, seed)
        expected = []
        for number, size in enumerate(sizes):
            payload = chance.randbytes(size)
            digest = sha256(payload).hexdigest()
            expected.append([f"r{number}", digest, digest])
            deadline = time.monotonic() + 300
            while not publish(producer, f"r{number}", payload):
                assert time.monotonic() < deadline, "the consumer gives nothing back"
                time.sleep(0)
        end = Message(error="end").encode()
        while (slot := producer.reserve(len(end), 0)) is None:
            time.sleep(0)
        producer.publish(slot, end)
        nothing = sha256(b"").hexdigest()
        assert answer(other_process) == [*expected, ["end", nothing, nothing]]
        assert producer.free == producer.region.capacity
