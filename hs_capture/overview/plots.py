"""Plots as SVG text: columns, bars and ranges. No library: a page must open anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34
_ROW = 24
_NAMES = 170


def columns(values: Sequence[float], labels: Sequence[str], unit: str) -> str:
    """Columns side by side, from zero; `labels` stand under the first, middle and last."""
    top = max(values, default=0) or 1
    space = (WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    floor = HEIGHT - _BOTTOM
    parts = [_text(_LEFT - 6, _TOP + 8, _short(top), "end"), _text(_LEFT - 6, floor, "0", "end")]
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{floor}H{WIDTH - _RIGHT}"/>')
    for place, value in enumerate(values):
        height = (floor - _TOP) * value / top
        parts.append(
            f'<rect x="{_LEFT + space * place:.1f}" y="{floor - height:.1f}" '
            f'width="{max(space - 1, 0.5):.1f}" height="{height:.1f}">'
            f"<title>{escape(labels[place])}: {_short(value)} {escape(unit)}</title></rect>"
        )
    if labels:
        middle = len(labels) // 2
        parts.append(_text(_LEFT, HEIGHT - 14, labels[0], "start"))
        parts.append(_text(WIDTH - _RIGHT, HEIGHT - 14, labels[-1], "end"))
        if len(labels) > 2:
            parts.append(
                _text(_LEFT + space * (middle + 0.5), HEIGHT - 14, labels[middle], "middle")
            )
    return _svg(HEIGHT, parts)


def bars(values: Sequence[float], labels: Sequence[str]) -> str:
    """A bar a row, from zero, with its name before it and its value behind it."""
    top = max(values, default=0) or 1
    parts = []
    for row, (value, label) in enumerate(zip(values, labels, strict=True)):
        y = _TOP + row * _ROW
        width = (WIDTH - _NAMES - 80) * value / top
        parts.append(_text(_NAMES - 8, y + 13, label, "end"))
        parts.append(f'<rect x="{_NAMES}" y="{y + 2}" width="{width:.1f}" height="15"/>')
        parts.append(_text(_NAMES + width + 6, y + 13, _short(value), "start"))
    return _svg(2 * _TOP + _ROW * len(values), parts)


def ranges(rows: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    """Five ascending quantiles a row on a logarithmic scale: a line, a box, the middle."""
    shown = [value for row in rows for value in row if value > 0]
    if not shown:
        return ""
    low, high = math.log10(min(shown)), math.log10(max(shown))
    span = (high - low) or 1.0

    def x(value: float) -> float:
        place = (math.log10(value) - low) / span if value > 0 else 0.0
        return _NAMES + (WIDTH - _NAMES - 40) * place

    parts = []
    for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = _TOP + number * _ROW + 9
        least, lower, middle, upper, most = map(x, row)
        parts.append(_text(_NAMES - 8, y + 4, label, "end"))
        parts.append(f'<path class="axis" d="M{least:.1f} {y}H{most:.1f}"/>')
        parts.append(
            f'<rect x="{lower:.1f}" y="{y - 6}" width="{max(upper - lower, 1):.1f}" height="12">'
            f"<title>{', '.join(map(_short, row))}</title></rect>"
        )
        parts.append(f'<path class="mark" d="M{middle:.1f} {y - 8}V{y + 8}"/>')
    bottom = _TOP + _ROW * len(rows)
    parts.append(_text(_NAMES, bottom + 14, _short(10**low), "start"))
    parts.append(_text(WIDTH - 40, bottom + 14, _short(10**high), "end"))
    return _svg(bottom + 20, parts)


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e7 else f"{value:.3g}"
