"""Line plots with Pillow, for the pages of docs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE, LEFT, TOP, RIGHT, BOTTOM = (900, 480), 70, 50, 290, 50
COLOURS = ("#c0392b", "#d68910", "#1f618d", "#148f77", "#7d3c98", "#566573")


def lines(path: Path, title: str, x: Sequence[float], series: dict[str, Sequence[float]]) -> None:
    """Draw series over x (logarithmic) and write a PNG."""
    picture = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(14)
    pen.text((LEFT, 14), title, fill="black", font=font)
    high = max(max(values) for values in series.values()) * 1.08
    width, height = SIZE[0] - LEFT - RIGHT, SIZE[1] - TOP - BOTTOM
    low, wide = math.log(min(x)), math.log(max(x)) - math.log(min(x))

    def place(a: float, b: float) -> tuple[float, float]:
        return LEFT + (math.log(a) - low) / wide * width, TOP + height * (1 - b / high)

    for step in range(6):
        value = high * step / 5
        _, y = place(min(x), value)
        pen.line([(LEFT, y), (LEFT + width, y)], fill="#dddddd")
        pen.text((8, y - 8), f"{value:.3g}", fill="#444444", font=font)
    for one in x:
        column, _ = place(one, 0)
        pen.text((column - 10, TOP + height + 8), f"{one:.3g}", fill="#444444", font=font)
    ends = sorted((values[-1], name) for name, values in series.items())
    rows: list[float] = []
    for value, name in reversed(ends):
        _, y = place(max(x), value)
        y = max(y, rows[-1] + 18) if rows else y
        rows.append(y)
        colour = COLOURS[list(series).index(name) % len(COLOURS)]
        pen.line([place(a, b) for a, b in zip(x, series[name], strict=True)], fill=colour, width=3)
        pen.text((LEFT + width + 10, y - 8), name, fill=colour, font=font)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
