"""Detects two cameras with the same id by their segments, which alternate between two time lines."""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

#: number of segments to remember; minimum number of segments per line, and of switches between the lines,
#: to conclude that there are two cameras
_RECENT, _ENOUGH = 8, 3
#: how far the start of a segment may be from the end of its line, in microseconds
_NEAR_US = 250_000


@dataclass(slots=True)
class TimeLines:
    """The time lines of the container clock that a camera's newest segments follow.

    The segments of one camera follow one line. Repeated segments are ignored. A segment out of order, or a
    restart, starts a line or leaves one that no later segment continues. If two lines alternate and both
    continue, there are two cameras.
    """

    _ends: dict[int, int] = field(default_factory=dict)  # by line: the container time at which it ends
    _recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _seen: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _next: int = 0

    def take(self, first_us: int, end_us: int, checksum: int) -> bool:
        """Assign a segment to a line.

        Args:
            first_us: Container time of its first frame.
            end_us: Container time at which it ends.
            checksum: Checksum of its bytes.

        Returns:
            Whether two cameras use the same id and this segment is from the other camera than the previous
            segment.
        """
        if (first_us, end_us, checksum) in self._seen:
            return False  # sent twice
        self._seen.append((first_us, end_us, checksum))
        near = {line: abs(first_us - end) for line, end in self._ends.items()}
        line = min(near, key=near.__getitem__, default=None)
        if line is None or near[line] > _NEAR_US:
            line, self._next = self._next, self._next + 1
        before = self._recent[-1] if self._recent else line
        self._recent.append(line)
        self._ends[line] = end_us
        # Drop lines without a recent segment, because a camera that restarts often leaves many.
        self._ends = {number: end for number, end in self._ends.items() if number in self._recent}
        return line != before and self.two

    @property
    def two(self) -> bool:
        """Whether two lines alternate and both continue."""
        lasting = [line for line in self._ends if self._recent.count(line) >= _ENOUGH]
        turns = [line for line in self._recent if line in lasting]
        changes = sum(line != following for line, following in pairwise(turns))
        return len(lasting) >= 2 and changes >= _ENOUGH
