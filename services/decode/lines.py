"""Two cameras under one id: their segments follow two time lines in turns."""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

#: segments that are remembered, and how many of them each of two lines must have, with as many changes
_RECENT, _ENOUGH = 8, 3
#: how far a segment may begin from the end of the one before it, microseconds
_NEAR_US = 250_000


@dataclass(slots=True)
class TimeLines:
    """The time lines of the container clock that a camera's newest segments follow.

    One camera's segments follow one line. Sent twice they are the same; out of order, or after a new start,
    they leave lines that nothing continues. Two lines that both go on in turns are two cameras.
    """

    _ends: dict[int, int] = field(default_factory=dict)  # container time at which a line ends, by its number
    _recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _seen: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _next: int = 0

    def take(self, first_us: int, end_us: int, checksum: int) -> bool:
        """Take a segment.

        Args:
            first_us: Container time of its first frame.
            end_us: Container time at which it ends.
            checksum: Of its bytes.

        Returns:
            Whether two cameras send under one id, and this segment is of another one than the segment before.
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
        # A line that no recent segment followed is forgotten: a camera that restarts often makes many.
        self._ends = {number: end for number, end in self._ends.items() if number in self._recent}
        return line != before and self.two

    @property
    def two(self) -> bool:
        """Whether two lines go on in turns."""
        lasting = [line for line in self._ends if self._recent.count(line) >= _ENOUGH]
        turns = [line for line in self._recent if line in lasting]
        changes = sum(line != following for line, following in pairwise(turns))
        return len(lasting) >= 2 and changes >= _ENOUGH
