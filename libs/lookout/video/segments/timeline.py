"""Converts a container's time stamps to times within a segment, which strictly increase."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

MAX_GAP_US = 30_000_000
#: clock jitter goes back by a few pictures at most; a larger step back is a jump
BACKWARD_US = 300_000
#: a longer step ahead is a clock fault, such as a first picture at 0 and the second at a Unix time; shorter
#: steps are kept, and a player waits for them
JUMP_US = 86_400_000_000


class Timeline:
    """Converts the container times of frames, in presentation order, to segment times in microseconds, which
    strictly increase.

    A step back by more than 0.3 s, or forward by more than `max_gap_us`, is a jump of the clock and not a
    real pause: time continues by one nominal frame. Smaller steps back and repeated stamps advance by one
    microsecond, so that no frame is lost. A frame without a time stamp follows one nominal frame after the
    previous one.
    """

    def __init__(self, fps: Fraction, max_gap_us: int = MAX_GAP_US) -> None:
        self._max_gap_us = max_gap_us
        self.nominal_us = max(1, round(1_000_000 / fps))
        self.first_us: int | None = None  # container time of frame 0, from the first stamped frame
        self.jumps = 0
        self.times: list[int] = []  # segment time of every frame
        self._shift = 0

    def add(self, container_us: int | None) -> tuple[int, bool]:
        """Add the next frame; return its segment time and whether the clock jumped."""
        time, jumped = self._place(container_us)
        self.jumps += jumped
        self.times.append(time)
        return time, jumped

    def _place(self, container_us: int | None) -> tuple[int, bool]:
        following = self.times[-1] + self.nominal_us if self.times else 0
        if container_us is None:
            return following, False
        if self.first_us is None:
            self.first_us = container_us - following
            self._shift = self.first_us
            return following, False
        time = container_us - self._shift
        step = time - self.times[-1]
        if step < -BACKWARD_US or step > self._max_gap_us:
            self._shift = container_us - following
            return following, True
        return max(time, self.times[-1] + 1), False

    @property
    def end_us(self) -> int:
        """Segment time at which the last frame ends, assuming that it lasts as long as frames usually do."""
        return self.times[-1] + usual_step(self.times, self.nominal_us) if self.times else 0

    @property
    def end_container_us(self) -> int:
        """Container time at which the last frame ends; the next segment should continue from it."""
        return self._shift + self.end_us


def usual_step(times: Sequence[int], otherwise: int) -> int:
    """Return the median distance between increasing times, in microseconds; `otherwise` if there are fewer
    than three.
    """
    return int(np.median(np.diff(times))) if len(times) > 2 else otherwise
