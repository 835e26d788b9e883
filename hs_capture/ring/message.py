"""The messages that travel in ring entries, as plain data and as JSON.

One message describes one forward pass of the model, or a part of one that was too large for a
single entry. The payload holds, for each stream in order, the rows of all segments back to back,
then the token ids of all opened records and those that the closed ones have generated, and then the
lineage of the cached prefixes of the opened ones: two int64 a token, (key << 32 | position) of the
row that was computed into its slot of the KV cache, -1 where that is not known, and the token id
that it was computed from.

The parts of a message are not frozen: the scheduler's thread makes hundreds of them a pass, and
making a frozen one takes three times as long. Nobody changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True)
class StreamSpec:
    """One tensor of every capture: [tokens, width] elements of `dtype`."""

    name: str
    dtype: str
    width: int


@dataclass
class Opened:
    """A request seen for the first time; its token ids (int64) are in the payload."""

    key: int
    rid: str
    num_tokens: int
    cached_tokens: int
    weights_version: int = 0
    lora: str | None = None
    lineage: int = 0
    """Of how many tokens of its prefix the lineage is in the payload, from the first on."""


@dataclass
class Segment:
    """Rows of one request: token positions [start, stop), from row `row` of the payload on."""

    key: int
    start: int
    stop: int
    row: int


@dataclass
class Lost:
    """Token positions [start, stop) of one request that will never come, and why."""

    key: int
    start: int
    stop: int
    reason: str


@dataclass
class Closed:
    """A request of which no more rows will come; `reason` where it did not end regularly.

    `rid` and `num_tokens` are for a writer that took the place of another one, which alone knew
    the request. The ids (int64) of the `generated` tokens are in the payload. The last one ends
    the answer: `num_tokens` counts the prompt and the others.
    """

    key: int
    rid: str
    num_tokens: int
    reason: str | None = None
    generated: int = 0


@dataclass(frozen=True)
class Message:
    """What happened to which requests. Applied in the order of the fields."""

    opened: list[Opened] = field(default_factory=list)
    rows: int = 0
    segments: list[Segment] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    error: str | None = None

    def encode(self) -> bytes:
        """Return the message as JSON."""
        return orjson.dumps(self)


def decode(data: bytes | memoryview) -> Message:
    """Return the message in `data`, which `Message.encode` wrote."""
    fields: dict[str, Any] = orjson.loads(data)
    return Message(
        opened=[Opened(**item) for item in fields["opened"]],
        rows=fields["rows"],
        segments=[Segment(**item) for item in fields["segments"]],
        lost=[Lost(**item) for item in fields["lost"]],
        closed=[Closed(**item) for item in fields["closed"]],
        error=fields["error"],
    )
