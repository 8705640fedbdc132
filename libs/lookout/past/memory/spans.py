"""Limits an answer to some frames of a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lookout.past.memory.types import Ints


class FrameChoice(Protocol):
    """Which frames an answer may read."""

    @property
    def whole(self) -> bool:
        """Whether every frame may be read."""
        ...

    def holds(self, frames: Ints) -> np.ndarray:
        """Return which frame numbers may be read, bool of the same shape."""
        ...

    def meets(self, first: Ints, last: Ints) -> np.ndarray:
        """Return which ranges [first, last] contain a frame that may be read, bool of the same shape."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """The frame numbers [first, last] that an answer may read. None: no bound on that side."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def of_times(cls, times_us: Ints, since_us: int | None, until_us: int | None) -> Span:
        """Choose the frames with since <= time < until."""
        first = None if since_us is None else int(np.searchsorted(times_us, since_us))
        last = None if until_us is None else int(np.searchsorted(times_us, until_us)) - 1
        return cls(first, last)

    @property
    def whole(self) -> bool:
        """Whether every frame may be read."""
        return self.first is None and self.last is None

    def holds(self, frames: Ints) -> np.ndarray:
        """Return which frame numbers lie inside, bool of the same shape."""
        inside = np.ones(frames.shape, dtype=bool)
        if self.first is not None:
            inside &= frames >= self.first
        if self.last is not None:
            inside &= frames <= self.last
        return inside

    def meets(self, first: Ints, last: Ints) -> np.ndarray:
        """Return which ranges of frames [first, last] have a frame inside, bool of the same shape."""
        return (first <= (self.last if self.last is not None else first)) & (
            last >= (self.first if self.first is not None else last)
        )


EVERYTHING = Span()


@dataclass(frozen=True, slots=True, eq=False)
class FrameMask:
    """The frames that an answer may read.

    Attributes:
        allowed: bool [frames], whether each frame may be read.
        before: int64 [frames + 1], number of allowed frames before each frame.
    """

    allowed: np.ndarray
    before: Ints

    @classmethod
    def of(cls, allowed: np.ndarray) -> FrameMask:
        """Choose the frames whose entry is true."""
        return cls(allowed, np.concatenate([[0], np.cumsum(allowed)]).astype(np.int64))

    @property
    def whole(self) -> bool:
        """Whether every frame may be read."""
        return bool(self.allowed.all())

    def holds(self, frames: Ints) -> np.ndarray:
        """Return which frame numbers may be read."""
        out: np.ndarray = self.allowed[frames]
        return out

    def meets(self, first: Ints, last: Ints) -> np.ndarray:
        """Return which ranges [first, last] contain a frame that may be read, bool of the same shape."""
        out: np.ndarray = self.before[last + 1] > self.before[first]
        return out
