"""The metadata of a capture file: whose rows it holds, and which of them."""

from __future__ import annotations

from dataclasses import dataclass

from hs_capture.format.links import Link
from hs_capture.format.record import Record
from hs_capture.format.run import LAYER_CONVENTION

INPUT_IDS = "input_ids"
PRE_NORM = "final.pre_norm"
POST_NORM = "final.post_norm"

TOLD_BY_INDEX_TOO = (
    *("rid", "sequence", "num_tokens", "prompt_tokens", "missing", "weights_version", "lora"),
    *("links", "rows_behind"),
)
"""The fields that a capture file and its line in the index must agree on."""

TOLD_BY_RUN_TOO = ("run_id", "layer_ids", "final", "hidden_size", "dtype")
"""The fields that a capture file and the run.json of its run must agree on."""


def layer_stream(layer: int) -> str:
    """The name of the stream with the output of decoder layer `layer`; -1 is the embedding."""
    return f"layer.{layer}"


@dataclass(frozen=True)
class CaptureMetadata(Record):
    """What every capture file says in its footer; files may say more.

    `num_tokens` and `rows_behind` together are the length of every stream, `missing` those of the
    first `num_tokens` rows that no layer stream holds, as [start, stop) pairs. The first
    `prompt_tokens` of the tokens are the prompt, those behind them were generated; None means that
    all are the prompt. `rows_behind` is 1 where the token that ended the answer ran too: its row is
    for captures that are linked to it. `final` names the final states that are
    stored: "pre_norm", "post_norm", both or none. `captured_at` is in Unix seconds, `key` the
    number by which the server knew the request, None where it was not written yet.
    `weights_version` counts how often the server's weights had been changed, `lora` names the
    adapter asked for. `links` says whose rows some of the missing ones are, as (start, stop, key);
    see `format.links`.
    """

    rid: str
    sequence: int
    num_tokens: int
    complete: bool
    incomplete_reason: str | None
    missing: tuple[tuple[int, int], ...]
    layer_ids: tuple[int, ...]
    final: tuple[str, ...]
    hidden_size: int
    dtype: str
    run_id: str
    rank: str
    hs_capture_version: str
    sglang_version: str
    model_class: str
    captured_at: float
    key: int | None = None
    layer_convention: str = LAYER_CONVENTION
    weights_version: int = 0
    lora: str | None = None
    links: tuple[Link, ...] = ()
    prompt_tokens: int | None = None
    rows_behind: int = 0
