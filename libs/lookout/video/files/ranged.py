"""Reads a remote recording in ranges, and keeps recently used pieces in memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from lookout.video.files.source import PositionReader
from lookout.video.segments.container import ByteSource

PIECE = 16 << 10
"""Smallest read in bytes, which suffices to tell whether decoding can begin at a keyframe, or for the
head of an index."""
RUN = 64
"""Maximum number of pieces in one read. The first read has one piece; the number doubles while reading
is sequential."""
CACHED = 4096
"""Pieces kept in memory."""


class RangedSource:
    """A recording behind a function that reads ranges of its bytes. Thread-safe.

    Args:
        name: Name in messages.
        size: Size in bytes.
        read: Returns the bytes [start, stop); its exceptions are passed on.
        cached: Pieces that stay in memory.
    """

    def __init__(
        self, name: str, size: int, read: Callable[[int, int], bytes], *, cached: int = CACHED
    ) -> None:
        self.name, self.size = name, size
        self._read, self._cached = read, cached
        self._pieces: OrderedDict[int, bytes] = OrderedDict()
        self._run_ends: dict[int, int] = {}  # by piece: length of the sequential run that ended there
        self._lock = threading.Lock()

    @contextmanager
    def open(self) -> Iterator[ByteSource]:
        """Open a reader with its own position over the shared pieces."""
        yield cast(ByteSource, io.BufferedReader(PositionReader(self.read_at, self.size), PIECE))

    def read_at(self, size: int, offset: int) -> bytes:
        """Read at least one and at most `size` bytes from an offset; empty at the end."""
        if not 0 <= offset < self.size:
            return b""
        number, begin = divmod(offset, PIECE)
        with self._lock:
            piece = self._piece(number)
            return piece[begin : begin + size]

    def _piece(self, number: int) -> bytes:
        if number not in self._pieces:
            self._fetch(number)
        self._pieces.move_to_end(number)
        return self._pieces[number]

    def _fetch(self, number: int) -> None:
        last = -(-self.size // PIECE)
        length = min(2 * self._run_ends.get(number - 1, 0), RUN) or 1
        stop = number + 1
        while stop < min(number + length, last) and stop not in self._pieces:
            stop += 1
        data = self._read(number * PIECE, min(stop * PIECE, self.size))
        for place in range(number, stop):
            self._pieces[place] = data[(place - number) * PIECE : (place - number + 1) * PIECE]
        self._run_ends[stop - 1] = length
        while len(self._pieces) > max(self._cached, stop - number):
            old, _ = self._pieces.popitem(last=False)
            self._run_ends.pop(old, None)
