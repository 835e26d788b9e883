"""An overview as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np

from hs_capture.counted import count_text

if TYPE_CHECKING:
    from hs_capture.overview.gather import Overview

_NAMED_CHANNELS = 3


def facts(overview: Overview) -> Iterator[tuple[str, str]]:
    """What the store holds, as pairs of a name and its value."""
    lengths, raw, stored = overview.lengths, int(overview.raw.sum()), int(overview.stored.sum())
    yield "store", str(overview.path)
    for run in overview.runs:
        yield "run", f"{run.run_id}: {run.model_class}, SGLang {run.sglang_version}"
        layers = ", ".join(map(str, run.layer_ids))
        yield "captured", f"layers {layers}; final {', '.join(run.final) or 'none'}; {run.dtype}"
    yield "captures", f"{len(lengths):,}, of which complete {overview.complete:,}"
    for reason, count in sorted(overview.reasons.items(), key=lambda item: -item[1]):
        yield "incomplete", f"{count:,} {reason}"
    if len(lengths):
        least, middle, most = np.quantile(lengths, (0, 0.5, 1)).astype(int)
        yield "tokens", f"{lengths.sum():,} ({least:,} to {most:,} a capture, median {middle:,})"
        yield "first, last", f"{_time(overview.published.min())}, {_time(overview.published.max())}"
    if stored:
        yield "size", f"{raw:,} bytes stored in {stored:,}, ratio {raw / stored:.2f}"


def to_text(overview: Overview) -> str:
    """The whole table."""
    lines = [f"{name:<13}{value}" for name, value in facts(overview)]
    if overview.states:
        lines += [
            "",
            f"states of {count_text(overview.sampled, 'capture')}: L2 norm a row, largest channels",
        ]
        lines.append(f"{'':<17}{'least':>10}{'median':>10}{'most':>10}  channel: mean magnitude")
    for kind in overview.states:
        least, _, middle, _, most = kind.norms
        named = ", ".join(f"{channel}: {mean:.3g}" for channel, mean in kind.channels)
        named = ", ".join(named.split(", ")[:_NAMED_CHANNELS])
        lines.append(
            f"{kind.name:<17}{least:>10.3g}{middle:>10.3g}{most:>10.3g}  {named}"
            f" (typical {kind.typical_channel:.3g})"
        )
    lines += [f"unreadable   {why}" for why in overview.unreadable]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(float(seconds), timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
