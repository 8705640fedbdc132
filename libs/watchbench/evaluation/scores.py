"""Scores of p(yes) against the truth: F1, calibration, thresholds, a reliability plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

P = NDArray[np.float64]
BINS = 10


@dataclass(slots=True)
class LabelledAnswers:
    """p(yes) of one question and its truth, window by window."""

    p: list[float] = field(default_factory=list)
    true: list[bool] = field(default_factory=list)

    def add(self, p: float, true: bool) -> None:
        """Add one window."""
        self.p.append(p)
        self.true.append(true)

    def f1(self, threshold: float = 0.5) -> float | None:
        """Return the F1 of p(yes) above a threshold; None if no window was true."""
        positive, true = np.array(self.p) > threshold, np.array(self.true, dtype=bool)
        if not true.any():
            return None
        hit = int((positive & true).sum())
        return 2 * hit / (int(positive.sum()) + int(true.sum()))

    def threshold_for(self, precision: float) -> float | None:
        """Return the smallest threshold with at least this precision.

        Args:
            precision: Wanted share of true windows among those above the threshold.

        Returns:
            A threshold of p(yes); None if no threshold reaches the precision.
        """
        if not any(self.true):
            return None
        order = np.argsort(-np.array(self.p), kind="stable")
        p, true = np.array(self.p)[order], np.array(self.true, dtype=bool)[order]
        right = np.cumsum(true) / np.arange(1, len(true) + 1)
        last = np.append(p[1:] < p[:-1], True)  # equal p(yes) stay on one side of a threshold
        good = np.flatnonzero((right >= precision) & last)
        if not len(good):
            return None
        at = int(good[-1])
        below = p[at + 1] if at + 1 < len(p) else 0.0
        return float((p[at] + below) / 2)

    def reliability(self) -> list[tuple[float, float, int]]:
        """Return up to ten non-empty bins of p(yes): mean p(yes), share of true windows, number of
        windows.
        """
        p, true = np.array(self.p), np.array(self.true, dtype=float)
        which = np.minimum((p * BINS).astype(int), BINS - 1)
        out = []
        for number in range(BINS):
            mine = which == number
            if mine.any():
                out.append((float(p[mine].mean()), float(true[mine].mean()), int(mine.sum())))
        return out

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: |mean p(yes) - share of true windows| of a bin, averaged over
        windows."""
        bins = self.reliability()
        total = sum(count for *_, count in bins)
        return sum(abs(p - true) * count for p, true, count in bins) / total if total else 0.0


def pooled(answers: Sequence[LabelledAnswers]) -> LabelledAnswers:
    """Merge the answers to all questions."""
    out = LabelledAnswers()
    for part in answers:
        out.p += part.p
        out.true += part.true
    return out


def reliability_plot(answers: LabelledAnswers, title: str) -> str:
    """A reliability plot as an SVG picture: share of true windows over p(yes), with dots sized by their
    windows."""
    side, edge = 320, 44
    scale = side - 2 * edge

    def place(x: float, y: float) -> tuple[float, float]:
        return edge + x * scale, side - edge - y * scale

    total = max(1, len(answers.p))
    (left, bottom), (right, top) = place(0, 0), place(1, 1)
    marks = []
    for p, true, count in answers.reliability():
        x, y = place(p, true)
        radius = 2 + 10 * (count / total) ** 0.5
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#2563eb" fill-opacity="0.6">'
            f"<title>p(yes) {p:.2f}, true {true:.2f}, {count} windows</title></circle>"
        )
    ticks = []
    for value in (0.0, 0.5, 1.0):
        x, y = place(value, value)
        ticks.append(f'<text x="{x:.0f}" y="{bottom + 16:.0f}" text-anchor="middle">{value:g}</text>')
        ticks.append(f'<text x="{left - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" font-family="sans-serif" '
            'font-size="11">',
            f'<rect width="{side}" height="{side}" fill="white"/>',
            f'<text x="{side / 2:.0f}" y="20" text-anchor="middle">{escape(title)}</text>',
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{scale}" height="{scale}" fill="none" '
            'stroke="#999"/>',
            f'<line x1="{left:.0f}" y1="{bottom:.0f}" x2="{right:.0f}" y2="{top:.0f}" stroke="#999" '
            'stroke-dasharray="4"/>',
            *ticks,
            *marks,
            f'<text x="{side / 2:.0f}" y="{side - 8}" text-anchor="middle">p(yes)</text>',
            f'<text x="12" y="{side / 2:.0f}" text-anchor="middle" '
            f'transform="rotate(-90 12 {side / 2:.0f})">share of true ones</text>',
            "</svg>\n",
        ]
    )
