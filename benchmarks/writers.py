"""A tap, a ring and a writer process for benchmarks, without SGLang."""

from __future__ import annotations

import os
from pathlib import Path

from hs_capture.capture.copier import HostCopier
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.sender import Overload
from hs_capture.capture.tap import Tap
from hs_capture.ring.message import StreamSpec
from hs_capture.ring.producer import Producer
from hs_capture.writer.config import WriterConfig

RANK = "bench"
"""In the names of the index and of the status file."""


def start(
    root: Path, ring_bytes: int, streams: tuple[StreamSpec, ...], workers: int, longest_prompt: int
) -> tuple[Tap, Producer, WriterLauncher]:
    """Start a writer for the run directory `root`, and what hands rows over to it."""
    producer = Producer(ring_bytes)
    copier = HostCopier(producer)
    config = WriterConfig(
        ring=-1,
        bell=-1,
        run_dir=str(root),
        rank=RANK,
        file_mode=0o600,
        reserve_bytes=0,
        workers=workers,
        server_pid=os.getpid(),
        streams=streams,
        splits_planes=copier.splits_planes,
        metadata={},
    )
    launcher = WriterLauncher(producer, config, os.environ)
    tap = Tap(producer, launcher, streams, copier, Overload(True, 60.0), longest_prompt)
    launcher.start()
    return tap, producer, launcher
