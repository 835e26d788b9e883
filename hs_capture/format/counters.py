"""What a capturing rank counts: each counter with its meaning.

The unit is in the name: ``_bytes`` or ``_microseconds``, else it is a number of what it names. A
row is one token position with all of its layers. Where several threads do the work of a time, their
times add up.
"""

from __future__ import annotations

SERVER_COUNTERS = {
    "batches": "forward passes with rows to capture",
    "rows_taken": "rows handed over to the writer",
    "taken_bytes": "bytes of these rows",
    "rows_dropped": "rows dropped because the writer did not keep up or the disk was full",
    "requests_untold": "requests of whose losses the writer could not even be told",
    "hook_errors": "errors in the hooks inside the server",
    "writer_restarts": "writers started in place of one that died",
    "blocked_microseconds": "time that the server was held up because the ring was full",
    "dropping_microseconds": "time from rows that were dropped to the next that were taken",
    "hook_microseconds": "time of the hooks on the scheduler's thread, held up or not",
    "copy_microseconds": "time of copying rows into the ring; on a GPU, of asking for the copies",
}
"""Counted in the server's scheduler."""

WRITER_COUNTERS = {
    "captures": "captures published",
    "complete": "those of them whose file has every row",
    "incomplete": "those of them whose file lacks rows, which others may have",
    "lost": "requests given up without a file",
    "tokens": "rows published",
    "raw_bytes": "bytes of the states before compression",
    "stored_bytes": "bytes of the capture files",
    "rows_late": "rows that came after their capture was closed for lack of news",
    "writer_errors": "errors in the writer",
    "compress_microseconds": "time of the writer's threads in the codec",
    "write_microseconds": "time of the writer's threads in writing blocks",
}
"""Counted in the writer."""

LEVELS = {
    "queued_bytes": "bytes in the ring that the writer has not stored yet",
    "open_records": "requests whose capture is not finished",
}
"""What is so at the moment. These go up and down; the counters above only grow."""

COUNTERS = {**SERVER_COUNTERS, **WRITER_COUNTERS, **LEVELS}
"""All of them: the counters of a status file."""
