"""Decides which streams keep their KV between windows if the byte budget is too small for all streams."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

REMEMBERED = 4096
"""Maximum number of streams whose last requests are remembered, whether or not their KV is kept."""


@dataclass(slots=True)
class _Entry:
    """A stream's bytes, the number of the request at which its KV was first kept (`arrived`), and that of its
    last request (`used`)."""

    size: int
    arrived: int
    used: int


class KvBudget:
    """Selects the streams that keep their KV, so that most of the selected streams stay the same.

    Cameras take turns, so the least recently used stream is the next one that is needed. If it were evicted,
    no camera would find its KV as soon as there is one camera too many. Therefore streams that are used
    regularly stay. To make room for a newcomer, the budget first evicts streams that were not used since the
    newcomer's second-last request (they are slower, or gone), then the stream that arrived last. With room
    for b of n equal windows, b - 1 streams keep their KV, and the other streams share the remaining room in
    turn.

    Args:
        limit: Maximum bytes for all streams together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: dict[str, _Entry] = {}
        self._requests: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._clock = 0

    @property
    def total(self) -> int:
        """Bytes counted for all streams."""
        # The list is a copy, because another thread reads this property for metrics.
        return sum(entry.size for entry in list(self._kept.values()))

    def admit(self, stream: str, size: int, running: Collection[str] = ()) -> list[str] | None:
        """Count `size` bytes for a stream that is about to run.

        Args:
            stream: The stream.
            size: Bytes of KV that the stream needs.
            running: Streams of the same batch, which are never evicted.

        Returns:
            The streams whose KV must be evicted. None: there is not enough room because of the streams in
                `running`; nothing was counted.
        """
        total = self.total + size - self.size(stream)
        victims: list[str] = []
        for victim in self._order(stream, running):
            if total <= self.limit:
                break
            total -= self._kept[victim].size
            victims.append(victim)
        if total > self.limit:
            return None
        self._clock += 1
        for victim in victims:
            del self._kept[victim]
        arrived = self._kept[stream].arrived if stream in self._kept else self._clock
        self._kept[stream] = _Entry(size, arrived, self._clock)
        self._remember(stream)
        return victims

    def size(self, stream: str) -> int:
        """Return the bytes counted for a stream; 0 if its KV is not kept."""
        return self._kept[stream].size if stream in self._kept else 0

    def release(self, stream: str) -> None:
        """Stop counting a stream's bytes. Unknown streams are ignored."""
        self._kept.pop(stream, None)

    def _order(self, newcomer: str, running: Collection[str]) -> Iterator[str]:
        """Yield the streams that may be evicted, in order of eviction."""
        since = self._requests.get(newcomer, (0, 0))[0]
        candidates = [name for name in self._kept if name != newcomer and name not in running]
        idle = [name for name in candidates if self._kept[name].used < since]
        yield from sorted(idle, key=lambda name: self._kept[name].used)
        active = [name for name in candidates if self._kept[name].used >= since]
        yield from sorted(active, key=lambda name: -self._kept[name].arrived)

    def _remember(self, stream: str) -> None:
        """Record the numbers of the stream's last two requests."""
        before = self._requests.pop(stream, (0, 0))
        self._requests[stream] = (before[1], self._clock)
        if len(self._requests) > REMEMBERED:
            self._requests.popitem(last=False)
