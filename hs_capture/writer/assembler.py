"""Join the chunks of each request: entries of the ring in, records for the publisher out."""

from __future__ import annotations

import errno
import os
import threading
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from hs_capture.faults import FaultLog
from hs_capture.format.codec import Encoded, dtype_of, encode, encode_planes, rows_per_block
from hs_capture.format.container import ContainerWriter
from hs_capture.ring.consumer import Consumer, Entry
from hs_capture.ring.message import Closed, Lost, Opened, Segment, StreamSpec
from hs_capture.writer.answers import Answers, complete
from hs_capture.writer.block import Block, row_bytes, tasks
from hs_capture.writer.config import TOKENS, WriterConfig
from hs_capture.writer.generation import Generation
from hs_capture.writer.leftovers import OPEN_FOLDER
from hs_capture.writer.lineage import LINEAGE_BYTES, links_of
from hs_capture.writer.publisher import Publisher
from hs_capture.writer.record import Record

TOKEN_ID_BYTES = 8


def is_full(error: BaseException) -> bool:
    """Whether `error` says that the file system has no room left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _reason(error: BaseException) -> str:
    """What readers of the index will see."""
    return "file_system_full" if is_full(error) else "write_error"


class Assembler:
    """Owns the open records. `apply` is called by one thread; blocks are compressed by a pool."""

    def __init__(
        self,
        config: WriterConfig,
        ring: Consumer,
        publisher: Publisher,
        pool: ThreadPoolExecutor,
        faults: FaultLog,
    ) -> None:
        """Unfinished files go to the folder ``open`` of the run directory."""
        self._config = config
        self._row_bytes = sum(row_bytes(stream) for stream in config.streams)
        # The streams without the tokens that the rows are of, which are before them.
        self._states = tuple(stream for stream in config.streams if stream != TOKENS)
        self._ring = ring
        self._publisher = publisher
        self._pool = pool
        # Who takes a token may compress. Twice as many threads are there, and write meanwhile.
        self._tokens: SimpleQueue[None] = SimpleQueue()
        for _ in range(config.workers):
            self._tokens.put(None)
        self._open: dict[int, Record] = {}
        # Requests whose records were closed for lack of news, until word of their end comes.
        self._overdue: set[int] = set()
        # Why nothing is stored any more, once that is so.
        self._given_up: str | None = None
        self._folder = Path(config.run_dir) / OPEN_FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for left_by_earlier_writer in self._folder.glob(f"{config.rank}-*.part"):
            left_by_earlier_writer.unlink(missing_ok=True)
        self._answers = (
            Answers(config.streams, config.splits_planes) if config.follows_decode else None
        )
        self._pending = 0
        self._lock = threading.Lock()
        self._faults = faults

    @property
    def open_records(self) -> int:
        """How many requests are not finished."""
        return len(self._open)

    @property
    def pending_blocks(self) -> int:
        """How many blocks wait for a thread of the pool, or are with one."""
        return self._pending

    def apply(self, entry: Entry) -> None:
        """Do what `entry` says. Its payload is released when the last block of it is stored."""
        message = entry.message
        ids_at = message.rows * self._row_bytes
        ids = sum(o.num_tokens for o in message.opened) + sum(c.generated for c in message.closed)
        lineage_at = ids_at + ids * TOKEN_ID_BYTES
        blocks: list[Block] = []
        for opened in message.opened:
            end = ids_at + opened.num_tokens * TOKEN_ID_BYTES
            lineage_end = lineage_at + opened.lineage * LINEAGE_BYTES
            lineage = entry.payload[lineage_at:lineage_end]
            blocks += self._open_record(opened, entry.payload[ids_at:end], lineage)
            ids_at, lineage_at = end, lineage_end
        for segment in message.segments:
            blocks += self._take_segment(entry, segment)
        self._submit(entry, blocks)
        for lost in message.lost:
            if lost.key in self._open:
                self._open[lost.key].lose(lost)
        for closed, generated in self._ends(entry):
            self._close(entry, closed, generated)
        if self._answers is not None and self._answers.too_many:
            for record in self._open.values():
                self._submit(None, list(self._answers.blocks(record)))
        self._ring.release(entry)

    def renounce(self, entry: Entry, reason: str) -> None:
        """Do what `entry` says but for its rows, which are given up for `reason`."""
        for opened in entry.message.opened:
            if not self._is_known(opened.key):
                self._lose(opened, reason)
                self._overdue.add(opened.key)
        for segment in entry.message.segments:
            if segment.key in self._open:
                lost = Lost(segment.key, segment.start, segment.stop, reason)
                self._open[segment.key].lose(lost)
        for closed, generated in self._ends(entry):
            self._close(entry, closed, generated)
        self._ring.release(entry)

    def give_up(self, reason: str) -> None:
        """Store nothing more; requests that lack a block by now are told with `reason`."""
        self._given_up = reason

    def close_all(self, reason: str) -> None:
        """Close every open record because of `reason`."""
        for record in list(self._open.values()):
            self._close_record(record, reason)

    def close_overdue(self) -> None:
        """Close the records that had no news for `record_seconds`: their requests were aborted.

        To be called when all that the server has sent was applied.
        """
        oldest = time.monotonic() - self._config.record_seconds
        for key, record in list(self._open.items()):
            if record.last_news < oldest:
                self._overdue.add(key)
                self._close_record(record, "aborted")

    def _is_known(self, key: int) -> bool:
        """Whether a request is open or was told already.

        The server repeats what it opened after a writer died, and the ring may still hold what that
        writer had published.
        """
        return key in self._open or key in self._publisher.told

    def _open_record(self, opened: Opened, ids: memoryview, lineage: memoryview) -> Iterator[Block]:
        if self._is_known(opened.key):
            return
        path = os.path.join(self._folder, f"{self._config.rank}-{opened.key}.part")
        container = ContainerWriter(path, mode=self._config.file_mode)
        for stream in (TOKENS, *self._states):
            width = None if stream is TOKENS else stream.width
            container.declare(stream.name, stream.dtype, width)
        record = Record(opened, container)
        if opened.lineage:
            record.origins = links_of(lineage, ids, opened.key)
        if self._answers is not None:
            record.generation = Generation(opened.num_tokens)
        self._open[opened.key] = record
        yield Block(record, TOKENS, 0, opened.num_tokens, (ids,))

    def _take_segment(self, entry: Entry, segment: Segment) -> Iterator[Block]:
        record = self._open.get(segment.key)
        if record is None:
            # It was told before: by a writer that died, or because it was overdue.
            if segment.key in self._overdue:
                self._ring.count("rows_late", segment.stop - segment.start)
            return
        prompt = record.request.num_tokens
        for start, stop in record.take(segment.start, segment.stop):
            row = segment.row + start - segment.start
            if start < prompt:
                yield from self._take_prompt(entry, record, start, min(stop, prompt), row)
            if self._answers is not None and stop > prompt:
                first = max(start, prompt)
                yield from self._answers.take(entry, record, first, stop, row + first - start)

    def _take_prompt(
        self, entry: Entry, record: Record, start: int, stop: int, row: int
    ) -> Iterator[Block]:
        """Make blocks of the positions [start, stop), which lie from row `row` of the entry on."""
        offset = (row_bytes(TOKENS) if record.generation else 0) * entry.message.rows
        for stream in self._states:
            size = entry.message.rows * row_bytes(stream)
            payload = entry.payload[offset : offset + size]
            rows = rows_per_block(row_bytes(stream))
            for a in range(start, stop, rows):
                b = min(a + rows, stop)
                first = row + a - start
                data = self._slices(payload, stream, entry.message.rows, first, first + b - a)
                yield Block(record, stream, a, b, data)
            offset += size

    def _slices(
        self, payload: memoryview, stream: StreamSpec, rows: int, start: int, stop: int
    ) -> tuple[memoryview, ...]:
        """Return the rows [start, stop) of a stream whose `rows` rows fill `payload`."""
        planes = dtype_of(stream.dtype).itemsize if self._config.splits_planes else 1
        row = row_bytes(stream) // planes
        return tuple(
            payload[base + start * row : base + stop * row]
            for base in range(0, planes * rows * row, rows * row)
        )

    def _submit(self, entry: Entry | None, blocks: list[Block]) -> None:
        # All are counted before the first is stored: a record is whole when none of its own is
        # left.
        with self._lock:
            self._pending += len(blocks)
            for block in blocks:
                block.record.pending += 1
        for task in tasks(blocks):
            if entry is not None:
                self._ring.keep(entry)
            self._pool.submit(self._store, entry, task)

    def _store(self, entry: Entry | None, blocks: list[Block]) -> None:
        """Compress blocks, then write them. Runs in the pool and must not raise."""
        try:
            compressed = self._compressed(blocks)
            began = time.perf_counter_ns()
            for block, encoded in compressed:
                self._write(block, encoded)
            self._ring.count("write_microseconds", (time.perf_counter_ns() - began) // 1000)
        except BaseException as error:
            # Not even a failure could be noted. Nobody knows what is stored of any of them.
            for block in blocks:
                block.record.failure = block.record.failure or _reason(error)
        finally:
            if entry is not None:
                self._ring.release(entry)
            for block in blocks:
                if self._settle(block.record, stored=1):
                    self._finish(block.record)

    def _compressed(self, blocks: list[Block]) -> list[tuple[Block, Encoded | None]]:
        token = self._tokens.get()
        began = time.perf_counter_ns()
        try:
            return [(block, self._encode(block)) for block in blocks]
        finally:
            self._tokens.put(token)
            self._ring.count("compress_microseconds", (time.perf_counter_ns() - began) // 1000)

    def _encode(self, block: Block) -> Encoded | None:
        self._heed_end(block)
        if block.record.failure is not None:
            return None
        try:
            if len(block.data) == 1:
                return encode(block.data[0], block.stream.dtype)
            return encode_planes(block.data, block.stream.dtype)
        except BaseException as error:
            self._fail(block, error)
            return None

    def _write(self, block: Block, encoded: Encoded | None) -> None:
        self._heed_end(block)
        if encoded is None or block.record.failure is not None:
            return
        try:
            block.record.container.add(block.stream.name, block.start, block.stop, encoded)
        except BaseException as error:
            self._fail(block, error)

    def _heed_end(self, block: Block) -> None:
        """Once nothing is stored any more, give up what lacks this block."""
        if self._given_up is not None:
            block.record.failure = self._given_up

    def _fail(self, block: Block, error: BaseException) -> None:
        # First of all, for a block that is missing must not look like one that is there.
        block.record.failure = _reason(error)
        self._faults.record("a block could not be stored", error)

    def _ends(self, entry: Entry) -> Iterator[tuple[Closed, array[int]]]:
        """Yield what the message closes, with the tokens that were generated."""
        message = entry.message
        at = message.rows * self._row_bytes
        at += sum(opened.num_tokens for opened in message.opened) * TOKEN_ID_BYTES
        for closed in message.closed:
            end = at + closed.generated * TOKEN_ID_BYTES
            yield closed, array("q", entry.payload[at:end].tobytes())
            at = end

    def _close(self, entry: Entry, closed: Closed, generated: array[int]) -> None:
        if closed.key in self._overdue:
            # It was published when it was closed for lack of news.
            self._overdue.remove(closed.key)
            return
        if closed.key in self._publisher.told:
            return
        record = self._open.get(closed.key)
        if record is None:
            # Else only a writer that died before it could publish this request had its rows.
            self._lose(closed, "dropped" if closed.reason == "dropped" else "writer_died")
            return
        # The entry stays in the ring until the capture is published. Should this writer die
        # before, the next one reads that the request was closed, and tells of the loss.
        self._ring.keep(entry)
        record.closing_entry = entry
        self._close_record(record, closed.reason, generated)

    def _close_record(
        self, record: Record, reason: str | None, generated: array[int] | None = None
    ) -> None:
        """Take nothing more of `record`, which has `generated` these tokens if that was said."""
        del self._open[record.request.key]
        record.end_reason = reason
        if self._answers is not None:
            self._submit(None, list(self._answers.end(record, generated)))
        if self._settle(record, closing=True):
            # The disk may take long, and this thread must see when the time is over.
            self._pool.submit(self._finish, record)

    def _settle(self, record: Record, *, stored: int = 0, closing: bool = False) -> bool:
        """Count stored blocks of `record`; return whether it is closing and none is left."""
        with self._lock:
            record.pending -= stored
            self._pending -= stored
            record.closing = record.closing or closing
            finished = record.closing and record.pending == 0 and not record.settled
            record.settled = record.settled or finished
        return finished

    def _finish(self, record: Record) -> None:
        """Publish a record, or tell of its loss. Runs in the pool and must not raise."""
        try:
            self._publish(record)
        except BaseException as error:
            self._faults.record("a request could not be told of", error)
        finally:
            if record.closing_entry is not None:
                self._ring.release(record.closing_entry)

    def _publish(self, record: Record) -> None:
        try:
            if record.failure is None:
                complete(record)
                self._publisher.publish(record)
                return
        except Exception as error:
            record.failure = self._count_error("a capture could not be published", error)
        try:
            record.container.abort()
        except OSError as error:
            self._count_error("an unfinished file could not be removed", error)
        key, rid = record.request.key, record.request.rid
        self._publisher.give_up(key, rid, record.num_tokens, record.failure or "error")

    def _lose(self, request: Opened | Closed, reason: str) -> None:
        self._publisher.give_up(request.key, request.rid, request.num_tokens, reason)

    def _count_error(self, what: str, error: BaseException) -> str:
        """Count and log `error`; return the reason that readers of the index will see."""
        self._faults.record(what, error)
        return _reason(error)
