"""An overview as one HTML page that needs nothing else: style and plots are in it."""

from __future__ import annotations

from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from hs_capture.overview.plots import bars, columns, ranges
from hs_capture.overview.table import facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hs_capture.overview.gather import Overview

_BINS = 40

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --bar: #2f6fab; --soft: #999; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --bar: #6aa9e0; --soft: #777; }
}
body { font: 15px/1.45 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.4em; } h2 { font-size: 1.05em; margin: 1.8em 0 .3em; }
table { border-collapse: collapse; } td { padding: .1em 1em .1em 0; vertical-align: top; }
td:first-child { color: var(--soft); white-space: nowrap; } td { overflow-wrap: anywhere; }
svg { width: 100%; height: auto; font-size: 12px; } svg text { fill: var(--ink); }
svg rect { fill: var(--bar); } svg .axis { stroke: var(--soft); fill: none; }
svg .mark { stroke: var(--ink); stroke-width: 2; fill: none; }
"""


def to_html(overview: Overview) -> str:
    """The page."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in facts(overview)
    )
    sections = "".join(
        f"<h2>{escape(title)}</h2>{plot}" for title, plot in _plots(overview).items() if plot
    )
    problems = "".join(f"<p>unreadable: {escape(why)}</p>" for why in overview.unreadable)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>hs-capture: {escape(overview.path.name)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>Captured hidden states</h1><table>{rows}</table>{problems}{sections}"
        "</body></html>\n"
    )


def _plots(overview: Overview) -> dict[str, str]:
    states = overview.states
    names = [kind.name for kind in states]
    plots = {}
    if len(overview.lengths):
        plots["Tokens a capture"] = _histogram(overview.lengths.astype(float), "captures")
        ratios = overview.raw / np.maximum(overview.stored, 1)
        plots["Raw bytes a stored byte"] = _histogram(ratios, "captures")
        plots["Captures over time (UTC)"] = _time_line(overview.published)
    reasons = sorted(overview.reasons.items(), key=lambda item: -item[1])
    plots["Incomplete captures by reason"] = (
        bars([count for _, count in reasons], [reason for reason, _ in reasons]) if reasons else ""
    )
    what = f"L2 norm of a row, {overview.sampled} captures: least, quarters, most (logarithmic)"
    plots[what] = ranges([kind.norms for kind in states], names)
    for kind in states:
        title = f"Largest channels of {kind.name}, mean magnitude"
        labels = [f"channel {channel}" for channel, _ in kind.channels]
        plots[title] = bars(
            [*(mean for _, mean in kind.channels), kind.typical_channel], [*labels, "typical"]
        )
    return plots


def _histogram(values: NDArray[np.float64], unit: str) -> str:
    counts, edges = np.histogram(values, bins=_BINS)
    return columns(counts.tolist(), [f"{edge:.4g}" for edge in edges[:-1]], unit)


def _time_line(published: NDArray[np.float64]) -> str:
    counts, edges = np.histogram(published, bins=_BINS)
    moments = [datetime.fromtimestamp(float(edge), timezone.utc) for edge in edges[:-1]]
    return columns(counts.tolist(), [f"{moment:%m-%d %H:%M:%S}" for moment in moments], "captures")
