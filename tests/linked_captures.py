"""Captures of one conversation, of which each has the rows that no earlier one has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from capture_files import states, write_capture
from hs_capture import Capture
from hs_capture.format.index import IndexEntry
from hs_capture.intervals import union

LAYERS = (1, 3, 4)
LONGEST = 40
IDS = [700 + 3 * place for place in range(LONGEST)]
TRUTH = {
    name: states(LONGEST, seed=place)
    for place, name in enumerate([*(f"layer.{layer}" for layer in LAYERS), "final.pre_norm"])
}
"""What the rows of the conversation are, whoever has captured them."""

Links = Sequence[tuple[int, int, int]]


def write_turn(
    run: Path,
    key: int,
    length: int,
    links: Links = (),
    missing: Sequence[tuple[int, int]] | None = None,
    behind: int = 0,
    **more: Any,
) -> IndexEntry:
    """Publish the capture of the first `length` tokens, under the rid ``turn-KEY``.

    It lacks the rows that it is linked to, if `missing` does not say another thing, and has so many
    rows `behind` its own.
    """
    lacks = union((start, stop) for start, stop, _ in links) if missing is None else missing
    fields: dict[str, Any] = {"rid": f"turn-{key}", "ids": IDS[: length + behind], **more}
    return write_capture(
        run,
        fields.pop("sequence", key),
        fields.pop("rid"),
        {name: rows[: length + behind] for name, rows in TRUTH.items()},
        missing=lacks,
        reason=fields.pop("reason", "prefix_cache" if lacks else None),
        key=key,
        links=tuple(links),
        rows_behind=behind,
        **fields,
    )


def assert_whole(capture: Capture, length: int) -> None:
    """The capture is complete, and each of its rows is that of the conversation."""
    assert (capture.complete, capture.missing, capture.incomplete_reason) == (True, [], None)
    assert capture.input_ids.tolist() == IDS[:length]
    aux = capture.aux_hidden_states()
    assert aux.shape == (length, len(LAYERS), 4)
    for place, layer in enumerate(LAYERS):
        assert aux[:, place].equal(torch.from_numpy(TRUTH[f"layer.{layer}"][:length]))
    last = capture.last_hidden_states("pre_norm")
    assert last.equal(torch.from_numpy(TRUTH["final.pre_norm"][:length]))


def sources_of(capture: Capture) -> list[tuple[int, int, str]]:
    """Which rows of a capture are in the file of which rid."""
    return [(s["start"], s["stop"], s["rid"]) for s in capture.metadata["sources"]]
