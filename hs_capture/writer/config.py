"""What the writer process is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from hs_capture.format.metadata import INPUT_IDS
from hs_capture.ring.message import StreamSpec

RECORD_SECONDS = 600.0
TOKENS = StreamSpec(INPUT_IDS, "int64", 1)
"""The first stream of a server that captures generated tokens: what each row was computed of."""


@dataclass(frozen=True)
class WriterConfig:
    """Everything the writer needs; sent as JSON on its standard input."""

    ring: int
    """Inherited descriptor of the ring."""
    bell: int
    """Inherited read end of a pipe: a byte means news, end of file means the server is gone."""
    run_dir: str
    rank: str
    file_mode: int
    reserve_bytes: int
    """Free space of the file system that is never used."""
    workers: int
    server_pid: int
    streams: tuple[StreamSpec, ...]
    splits_planes: bool
    """Whether each stream in a payload is one byte plane after the other."""
    metadata: dict[str, Any]
    """Copied into every capture: layer ids, model class, versions and so on."""
    record_seconds: float = field(default_factory=lambda: RECORD_SECONDS)
    """How long a record stays open without news. SGLang tells nobody of an aborted request, and an
    idle server keeps its object, so that not even its end is seen."""

    @property
    def follows_decode(self) -> bool:
        """Whether the rows of generated tokens come too, each with the token that it is of."""
        return self.streams[:1] == (TOKENS,)

    def encode(self) -> bytes:
        """Return the configuration as JSON."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes) -> WriterConfig:
        """Return the configuration in `data`, which `encode` wrote."""
        fields = orjson.loads(data)
        fields["streams"] = tuple(StreamSpec(**stream) for stream in fields["streams"])
        return cls(**fields)
