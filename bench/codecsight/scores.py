"""F1 of answers by window, by event, and by the paper's rule for a whole video."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
CONSECUTIVE = 2  # windows in a row that make a positive video (CodecSight, section 5)


@dataclass(frozen=True, slots=True)
class Counts:
    """Answers counted against the truth."""

    hit: int = 0
    miss: int = 0
    false: int = 0
    quiet: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.hit + other.hit, self.miss + other.miss, self.false + other.false, self.quiet + other.quiet
        )

    @property
    def precision(self) -> float | None:
        """Share of the positive answers that are true; None where there are none."""
        return self.hit / (self.hit + self.false) if self.hit + self.false else None

    @property
    def recall(self) -> float | None:
        """Share of the true ones that are answered so; None where nothing is true."""
        return self.hit / (self.hit + self.miss) if self.hit + self.miss else None

    @property
    def f1(self) -> float | None:
        """F1; None where nothing was to be found and nothing was said."""
        total = 2 * self.hit + self.miss + self.false
        return 2 * self.hit / total if total else None


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to one question in the windows of one video: what was said, what is true, and where that is
    known; bool [windows]."""

    said: Bools
    true: Bools
    known: Bools


def by_window(answers: Answers) -> Counts:
    """Every window whose truth is known."""
    said, true = answers.said[answers.known], answers.true[answers.known]
    return Counts(
        int((said & true).sum()),
        int((~said & true).sum()),
        int((said & ~true).sum()),
        int((~said & ~true).sum()),
    )


def runs(mask: Bools) -> list[range]:
    """Where a mask is true without a gap."""
    return [
        range(places[0], places[-1] + 1)
        for value, members in groupby(range(len(mask)), key=lambda place: bool(mask[place]))
        if value and (places := list(members))
    ]


def by_event(answers: Answers) -> Counts:
    """Runs of true windows: found where a window of them is positive. Runs of positive windows: false where
    none of them is true, and one of them is known to be false."""
    true, said = answers.true & answers.known, answers.said
    found = [bool(said[run].any()) for run in runs(true)]
    false = sum(
        not true[run].any() and bool((answers.known & ~answers.true)[run].any()) for run in runs(said)
    )
    return Counts(sum(found), len(found) - sum(found), false)


def by_video(answers: Answers) -> Counts:
    """The paper's rule: a video is positive where two consecutive windows are. Videos whose truth is known
    nowhere are left out."""
    if not answers.known.any():
        return Counts()
    said = any(len(run) >= CONSECUTIVE for run in runs(answers.said))
    true = bool((answers.true & answers.known).any())
    return Counts(
        int(said and true), int(true and not said), int(said and not true), int(not said and not true)
    )


RULES: Mapping[str, Callable[[Answers], Counts]] = {
    "video": by_video,
    "event": by_event,
    "window": by_window,
}


def expired(answers: Answers) -> Counts:
    """Windows that an event has just left: the truth was yes in the window before and is no. A yes is
    false."""
    left = np.zeros_like(answers.true)
    left[1:] = answers.true[:-1] & ~answers.true[1:] & answers.known[:-1] & answers.known[1:]
    return Counts(false=int((answers.said & left).sum()), quiet=int((~answers.said & left).sum()))


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are defined; None where none is."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def rounded(value: float | None, digits: int = 4) -> float | None:
    """For JSON."""
    return None if value is None else round(value, digits)


def interval_of(
    cameras: Sequence[Sequence[Counts]], f1: Callable[[Sequence[Counts]], float | None], rounds: int = 1000
) -> list[float] | None:
    """95 % of a figure over cameras (bootstrap).

    Args:
        cameras: Of every camera, its counts by question.
        f1: The figure of counts by question, summed over cameras.
        rounds: Draws.
    """
    draw = np.random.default_rng(0)
    table = np.array([[(c.hit, c.miss, c.false, c.quiet) for c in camera] for camera in cameras])
    values = []
    for rows in draw.integers(0, len(table), (rounds, len(table))):
        value = f1([Counts(*row) for row in table[rows].sum(0).tolist()])
        if value is not None:
            values.append(value)
    return [round(float(edge), 4) for edge in np.quantile(values, (0.025, 0.975))] if values else None
