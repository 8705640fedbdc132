"""A bounded, ordered buffer of sampled pictures between decoding threads and the reader."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from lookout.video.motion.types import U8, Picture

REORDER = 16  # H.264 and HEVC may output a picture up to this many frames late


@dataclass(frozen=True, slots=True)
class RingSample:
    """A sampled picture. pixels: uint8 [height, width, 3] RGB."""

    key: bool
    picture: Picture
    corrupt: bool
    pixels: U8


class Ring:
    """A buffer of at most `capacity` samples between decoding threads and the reader."""

    def __init__(self, samples: int, capacity: int) -> None:
        self.capacity = max(1, min(capacity, samples))
        self.read = 0
        self.error: BaseException | None = None
        self.closed = False
        self._stalled_s = 0.0
        self._stalls: dict[int, float] = {}  # by thread: when it began to wait
        self._samples: dict[int, RingSample | None] = {}  # None: missing
        self._changed = threading.Condition()

    def put(self, position: int, sample: RingSample) -> bool:
        """Add a sample once there is room; return False if the reader has stopped."""
        with self._changed:
            if position >= self.read + self.capacity:
                name = threading.get_ident()
                self._stalls[name] = time.perf_counter()
                self._changed.wait_for(lambda: self.closed or position < self.read + self.capacity)
                self._stalled_s += time.perf_counter() - self._stalls.pop(name)
            # A sample may be added twice, if a thread decodes a range again. The first one is kept.
            if not self.closed and position >= self.read:
                self._samples.setdefault(position, sample)
                self._changed.notify_all()
            return not self.closed

    @property
    def stalled_s(self) -> float:
        """Total time in seconds that decoding threads have waited for room."""
        with self._changed:
            now = time.perf_counter()
            return self._stalled_s + sum(now - begun for begun in self._stalls.values())

    def give_up(self, position: int) -> None:
        """Mark a sample as missing."""
        with self._changed:
            if position >= self.read:
                self._samples.setdefault(position, None)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Pass an error of a decoding thread to the reader, and close the ring."""
        with self._changed:
            self.error = self.error or error
            self.closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the buffer, because the reader takes no more samples; waiting threads return."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def take(self, position: int) -> RingSample | None:
        """Wait for a sample and return it; None if it is missing."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or position in self._samples)
            if position not in self._samples and self.error is not None:
                raise self.error
            self.read = position + 1
            self._changed.notify_all()
            return self._samples.pop(position)


class SampleDelivery:
    """Delivers the samples of a packet range in order. Each is delivered once so many frames have followed
    that damage found later cannot affect it.
    """

    def __init__(self, ring: Ring, wanted: frozenset[int], positions: dict[int, int]) -> None:
        self._ring, self._positions = ring, positions
        self.awaited = sorted(positions[pts] for pts in wanted)
        self._held: list[tuple[int, int, RingSample]] = []
        self._frames = 0
        self._delivered = 0

    @property
    def complete(self) -> bool:
        """Whether every sample was decoded, that is, is held here or was already delivered."""
        return len(self.awaited) <= len(self._held)

    def hold(self, pts: int, sample: RingSample) -> None:
        """Add a sample."""
        self._held.append((self._frames, self._positions[pts], sample))

    def step(self) -> None:
        """Count a decoded frame, and deliver the samples that are old enough."""
        self._frames += 1
        while self._held and self._frames - self._held[0][0] > REORDER:
            self._deliver()

    def finish(self) -> int:
        """Deliver the remaining samples, and mark those that were not decoded as missing. Return the total
        number of delivered samples.
        """
        while self._held:
            self._deliver()
        for position in self.awaited:
            self._ring.give_up(position)
        return self._delivered

    def _deliver(self) -> None:
        _, position, sample = self._held.pop(0)
        # Frames come in order, so an earlier sample that has not come yet will not come.
        while self.awaited and self.awaited[0] <= position:
            earlier = self.awaited.pop(0)
            if earlier != position:
                self._ring.give_up(earlier)
        self._ring.put(position, sample)
        self._delivered += 1
