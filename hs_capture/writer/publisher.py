"""Make a finished record visible: atomic rename, then one line in the index."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path

from hs_capture.errors import FormatError
from hs_capture.format.codec import dtype_of
from hs_capture.format.index import IndexEntry, append_line, cut_torn_line, read_index
from hs_capture.writer.config import WriterConfig
from hs_capture.writer.record import Record

logger = logging.getLogger(__name__)

CAPTURES_PER_FOLDER = 1000
"""A million captures make a thousand folders of a thousand files."""

OPEN_FOLDER = "open"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(rid: str) -> str:
    """Return a readable file name part for `rid`, which comes from a client and is not trusted.

    It need not be unique: the sequence number before it is.
    """
    return _UNSAFE.sub("_", rid)[:48].strip("._") or "_"


class Publisher:
    """Publishes records of one rank into one run directory. Threads may share it."""

    def __init__(self, config: WriterConfig) -> None:
        """Continue the rank's index where an earlier writer of this run left off."""
        self.run_dir = Path(config.run_dir)
        self.counters: Counter[str] = Counter()
        self.last_capture: float | None = None
        self._config = config
        self._lock = threading.Lock()
        self._row_bytes = sum(
            stream.width * dtype_of(stream.dtype).itemsize for stream in config.streams
        )
        # A folder must be searchable wherever its files are readable.
        self._folder_mode = config.file_mode | (config.file_mode & 0o440) >> 2
        self._index_path = self.run_dir / f"index-{config.rank}.jsonl"
        self._sequence = 0
        if self._index_path.exists():
            for entry in self._earlier_entries():
                self._sequence = max(self._sequence, entry.sequence + 1)
                self._count(entry)
            self._sequence = max(self._sequence, self._first_free_sequence())
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._index = os.open(self._index_path, flags, config.file_mode)

    def publish(self, record: Record) -> None:
        """Write the footer of `record`, give it its final name and index it.

        Raises:
            OSError: the file system refused; the record is then not published.
        """
        sequence = self._next_sequence()
        folder = self.run_dir / f"{sequence // CAPTURES_PER_FOLDER:06d}"
        folder.mkdir(mode=self._folder_mode, exist_ok=True)
        path = folder / f"{sequence:09d}-{safe_name(record.request.rid)}.hsc"
        now = time.time()
        missing = record.missing
        entry = IndexEntry(
            sequence=sequence,
            file=path.relative_to(self.run_dir).as_posix(),
            rid=record.request.rid,
            num_tokens=record.request.num_tokens,
            rows=record.rows,
            complete=not missing,
            incomplete_reason=record.incomplete_reason,
            missing=tuple(missing),
            raw_bytes=record.rows * self._row_bytes,
            stored_bytes=record.container.finish(
                {
                    "rid": record.request.rid,
                    "sequence": sequence,
                    "num_tokens": record.request.num_tokens,
                    "complete": not missing,
                    "incomplete_reason": record.incomplete_reason,
                    "missing": missing,
                    "captured_at": now,
                    "weights_version": record.request.weights_version,
                    "lora": record.request.lora,
                    **self._config.metadata,
                },
                rows=record.request.num_tokens,
            ),
            published=now,
            weights_version=record.request.weights_version,
            lora=record.request.lora,
        )
        record.path.rename(path)
        self._index_entry(entry)

    def give_up(self, rid: str, num_tokens: int, reason: str) -> None:
        """Leave a line in the index that says why this request has no file.

        Raises:
            OSError: the file system refused.
        """
        self._index_entry(
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
            )
        )

    def _earlier_entries(self) -> list[IndexEntry]:
        """Return what the index holds; a broken one is put aside, for readers have the files."""
        cut_torn_line(self._index_path)
        try:
            return read_index(self._index_path)
        except FormatError as error:
            aside = self._index_path.with_suffix(f".broken-{time.time_ns()}")
            logger.error("hs-capture: %s; it is put aside as %s", error, aside.name)
            self._index_path.rename(aside)
            return []

    def close(self) -> None:
        """Close the index."""
        os.close(self._index)

    def _first_free_sequence(self) -> int:
        """Return the sequence after the last file, which an earlier writer may not have indexed."""
        newest = max(self.run_dir.glob("[0-9]*"), default=None)
        files = newest.glob("*.hsc") if newest is not None else ()
        return max((int(path.name.partition("-")[0]) + 1 for path in files), default=0)

    def _next_sequence(self) -> int:
        with self._lock:
            self._sequence += 1
            return self._sequence - 1

    def _index_entry(self, entry: IndexEntry) -> None:
        line = append_line(entry)
        with self._lock:
            written = os.write(self._index, line)
            if written < len(line):
                # The file system is full in the middle of a line; the next one must begin afresh.
                cut_torn_line(self._index_path)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._index_path))
            self._count(entry)

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
