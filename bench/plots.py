"""Small SVG plots for the pages in docs/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2f6db3", "#d9822b", "#3f9c63", "#a2468f", "#7a7a7a", "#b33a3a", "#1f9ea8")
FONT = 'font-family="system-ui, sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True)
class Bars:
    """A group of bars: value by name."""

    label: str
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Lines:
    """A line of (x, y) points."""

    label: str
    points: Sequence[tuple[float, float]]


def _page(width: float, height: float, body: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {FONT}>'
    back = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head, back, *body, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222" {extra}>{escape(text)}</text>'


def _legend(names: Sequence[str], x: float, y: float) -> list[str]:
    out = []
    for name, colour in zip(names, COLOURS, strict=False):
        out.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" fill="{colour}"/>')
        out.append(_text(x + 14, y, name))
        x += 30 + 7 * len(name)
    return out


def bar_chart(title: str, groups: Sequence[Bars], *, mark: float | None = None) -> str:
    """Horizontal bars, one group under the other, a dash where a name has no value; `mark` draws a vertical
    line."""
    names = list(dict.fromkeys(name for group in groups for name in group.values))
    left, right, bar = 280.0, 700.0, 13.0
    top = 56.0
    most = max([value for group in groups for value in group.values.values()] + [mark or 0.0]) * 1.08 or 1.0
    scale = (right - left) / most
    body = [_text(12, 20, title, extra='font-weight="bold"'), *_legend(names, 12, 40)]
    y = top
    for group in groups:
        body.append(_text(left - 8, y + bar * len(names) / 2 + 4, group.label, "end"))
        for name, colour in zip(names, COLOURS, strict=False):
            value = group.values.get(name)
            if value is None:
                body.append(_text(left + 4, y + bar - 4, f"{name}: -"))
                y += bar
                continue
            place = f'x="{left:g}" y="{y:.1f}" width="{value * scale:.1f}" height="{bar - 2:g}"'
            body.append(f'<rect {place} fill="{colour}"/>')
            body.append(_text(left + value * scale + 4, y + bar - 4, f"{value:.3g}"))
            y += bar
        y += 9
    if mark is not None:
        x = left + mark * scale
        body.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6:g}" y2="{y:.1f}" stroke="#222"/>')
    return _page(right + 60, y + 8, body)


def line_chart(title: str, across: str, up: str, lines: Sequence[Lines]) -> str:
    """Lines over a logarithmic x axis."""
    left, right, top, bottom = 60.0, 640.0, 56.0, 320.0
    xs = [math.log(x) for line in lines for x, _ in line.points]
    most = max(y for line in lines for _, y in line.points) * 1.08
    low, high = min(xs), max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log(x) - low) / max(1e-9, high - low) * (right - left),
            bottom - y / most * (bottom - top),
        )

    body = [
        _text(12, 20, title, extra='font-weight="bold"'),
        *_legend([line.label for line in lines], 12, 40),
    ]
    body.append(f'<line x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#222"/>')
    body.append(f'<line x1="{left}" x2="{left}" y1="{top}" y2="{bottom}" stroke="#222"/>')
    for x in sorted({x for line in lines for x, _ in line.points}):
        at, _ = place(x, 0)
        body.append(_text(at, bottom + 16, f"{x:g}", "middle"))
    for step in range(5):
        value = most * step / 4
        body.append(_text(left - 6, place(math.exp(low), value)[1] + 4, f"{value:.3g}", "end"))
    body.append(_text((left + right) / 2, bottom + 34, across, "middle"))
    body.append(
        _text(14, (top + bottom) / 2, up, "middle", f'transform="rotate(-90 14 {(top + bottom) / 2})"')
    )
    for line, colour in zip(lines, COLOURS, strict=False):
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line.points)
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return _page(right + 30, bottom + 46, body)


def heat_map(title: str, names: Sequence[str], rows: Sequence[Sequence[float]]) -> str:
    """A square of shades from white (the least value) to dark (1), rows and columns by the same names."""
    cell, left, top = 22.0, 110.0, 40.0
    low = min(value for row in rows for value in row)
    body = [_text(12, 20, title, extra='font-weight="bold"')]
    for y, (name, row) in enumerate(zip(names, rows, strict=True)):
        body.append(_text(left - 6, top + cell * (y + 0.7), name, "end"))
        for x, value in enumerate(row):
            depth = (value - low) / max(1e-9, 1 - low)
            place = f'x="{left + cell * x:g}" y="{top + cell * y:g}" width="{cell:g}" height="{cell:g}"'
            body.append(f'<rect {place} fill="{COLOURS[0]}" fill-opacity="{depth:.2f}"/>')
    size = cell * len(names)
    body.append(_text(left, top + size + 18, f"white: {low:.2f}, dark: 1"))
    return _page(left + size + 20, top + size + 30, body)
