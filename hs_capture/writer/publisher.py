"""Make a finished record visible: atomic rename, then one line in the index."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path

from hs_capture.errors import FormatError
from hs_capture.faults import FaultLog
from hs_capture.format.append import append_whole
from hs_capture.format.catalog import capture_files, describe
from hs_capture.format.codec import dtype_of
from hs_capture.format.index import IndexEntry, append_line, cut_torn_line, iterate_index
from hs_capture.format.permissions import create_folder, open_to_append
from hs_capture.writer.config import TOKENS, WriterConfig
from hs_capture.writer.record import Record

logger = logging.getLogger(__name__)

CAPTURES_PER_FOLDER = 1000
"""A million captures make a thousand folders of a thousand files."""

COUNTERS = (
    *("captures", "complete", "incomplete", "tokens", "raw_bytes", "stored_bytes"),
    "lost",
)
"""What the index adds up to, in the status file."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SEQUENCE = re.compile(r"\d+(?=-)")


def safe_name(rid: str) -> str:
    """Return a readable file name part for `rid`, which comes from a client and is not trusted.

    It need not be unique: the sequence number before it is.
    """
    return _UNSAFE.sub("_", rid)[:48].strip("._") or "_"


class Publisher:
    """Publishes records of one rank into one run directory. Threads may share it."""

    def __init__(self, config: WriterConfig, faults: FaultLog | None = None) -> None:
        """Continue the rank's index where an earlier writer of this run left off.

        Lines that cannot be written are kept, and counted as errors in `faults`.
        """
        self._faults = FaultLog(logger) if faults is None else faults
        self.run_dir = Path(config.run_dir)
        self.counters = Counter(dict.fromkeys(COUNTERS, 0))
        self.last_capture: float | None = None
        self._config = config
        self._lock = threading.Lock()
        self._row_bytes = sum(
            stream.width * dtype_of(stream.dtype).itemsize
            for stream in config.streams
            if stream != TOKENS
        )
        # A folder must be searchable wherever its files are readable.
        self._folder_mode = config.file_mode | (config.file_mode & 0o440) >> 2
        self._index_path = self.run_dir / f"index-{config.rank}.jsonl"
        self._sequence = 0
        self.told: set[int] = set()
        """Keys of the requests that earlier writers of this run have told of."""
        named = self._read_index()
        self._index = open_to_append(self._index_path, config.file_mode)
        # Lines to write. The file of a request is published once, its line later if need be.
        self._owed: deque[bytes] = deque()
        self.owes = False
        """Whether there are lines that found no room so far."""
        self._index_unnamed(named)

    def publish(self, record: Record) -> None:
        """Write the footer of `record`, give it its final name and index it.

        Raises:
            OSError: the file system refused; the record is then not published.
        """
        sequence = self._next_sequence()
        folder = f"{sequence // CAPTURES_PER_FOLDER:06d}"
        with suppress(FileExistsError):
            create_folder(os.path.join(self.run_dir, folder), self._folder_mode)
        file = f"{folder}/{sequence:09d}-{safe_name(record.request.rid)}.hsc"
        now = time.time()
        missing, links = record.missing, record.links
        followed = record.prompt_tokens
        behind = len(record.behind)
        generation = {} if followed is None else {"prompt_tokens": followed, "rows_behind": behind}
        entry = IndexEntry(
            sequence=sequence,
            file=file,
            rid=record.request.rid,
            num_tokens=record.num_tokens,
            rows=record.rows,
            complete=not missing,
            incomplete_reason=record.incomplete_reason,
            missing=tuple(missing),
            raw_bytes=(record.rows + behind) * self._row_bytes,
            stored_bytes=record.container.finish(
                {
                    "rid": record.request.rid,
                    "sequence": sequence,
                    "num_tokens": record.num_tokens,
                    "complete": not missing,
                    "incomplete_reason": record.incomplete_reason,
                    "missing": missing,
                    "captured_at": now,
                    "key": record.request.key,
                    "weights_version": record.request.weights_version,
                    "lora": record.request.lora,
                    "links": links,
                    **generation,
                    **self._config.metadata,
                },
                rows=record.file_rows,
            ),
            published=now,
            key=record.request.key,
            weights_version=record.request.weights_version,
            lora=record.request.lora,
            links=links,
            prompt_tokens=followed,
            rows_behind=behind,
        )
        try:
            os.rename(record.path, os.path.join(self.run_dir, file))
        except OSError:
            # It is finished, so nobody else would remove it, on a file system that may be full.
            with suppress(FileNotFoundError):
                os.unlink(record.path)
            raise
        self._tell(entry)

    def give_up(self, key: int, rid: str, num_tokens: int, reason: str) -> None:
        """Leave a line in the index that says why this request has no file."""
        self._tell(
            IndexEntry(
                sequence=self._next_sequence(),
                file=None,
                rid=rid,
                num_tokens=num_tokens,
                rows=0,
                complete=False,
                incomplete_reason=reason,
                missing=((0, num_tokens),),
                raw_bytes=0,
                stored_bytes=0,
                published=time.time(),
                key=key,
            )
        )

    def counted(self) -> dict[str, int]:
        """Return the counters as they are between two records."""
        with self._lock:
            return dict(self.counters)

    def pay_owed(self) -> None:
        """Write the lines that found no room so far, as far as there is some now."""
        with self._lock:
            try:
                while self._owed:
                    append_whole(self._index, self._owed[0], self._index_path)
                    self._owed.popleft()
                self.owes = False
            except OSError as error:
                self.owes = True
                self._faults.record("the index could not be written", error)

    def close(self) -> None:
        """Write what is owed, and close the index."""
        self.pay_owed()
        os.close(self._index)

    def _read_index(self) -> set[str]:
        """Learn what the index tells; return the files that it names.

        A broken index is put aside, and written again from the files.
        """
        named: set[str] = set()
        try:
            cut_torn_line(self._index_path)
            for entry in iterate_index(self._index_path):
                named.add(entry.file or "")
                self._learn(entry)
        except FileNotFoundError:
            pass
        except FormatError as error:
            aside = self._index_path.with_suffix(f".broken-{time.time_ns()}")
            logger.error("hs-capture: %s; it is put aside as %s", error, aside.name)
            self._index_path.rename(aside)
            named.clear()
            self.counters.clear()
        return named

    def _index_unnamed(self, named: set[str]) -> None:
        """Index the files that an earlier writer published, and died before it could say so."""
        for file in sorted(set(capture_files(self.run_dir)) - named):
            number = _SEQUENCE.match(Path(file).name)
            if number is not None:
                self._sequence = max(self._sequence, int(number[0]) + 1)
            try:
                entry = describe(self.run_dir, file)
            except (FormatError, OSError) as error:
                self._faults.record("a published file could not be indexed", error)
                continue
            self._learn(entry)
            self._owed.append(append_line(entry))
        self.pay_owed()

    def _learn(self, entry: IndexEntry) -> None:
        """Take into account what an earlier writer has told."""
        self._sequence = max(self._sequence, entry.sequence + 1)
        if entry.key is not None:
            self.told.add(entry.key)
        self._count(entry)

    def _next_sequence(self) -> int:
        with self._lock:
            self._sequence += 1
            return self._sequence - 1

    def _tell(self, entry: IndexEntry) -> None:
        with self._lock:
            self._owed.append(append_line(entry))
            self._count(entry)
        self.pay_owed()

    def _count(self, entry: IndexEntry) -> None:
        if entry.file is None:
            self.counters["lost"] += 1
            return
        self.counters["captures"] += 1
        self.counters["complete" if entry.complete else "incomplete"] += 1
        self.counters["tokens"] += entry.rows
        self.counters["raw_bytes"] += entry.raw_bytes
        self.counters["stored_bytes"] += entry.stored_bytes
        self.last_capture = entry.published
