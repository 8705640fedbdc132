"""Ranges of a recording that lies elsewhere: what is asked for, and what stays."""

from __future__ import annotations

import random

from lookout.video.files.ranged import PIECE, RUN, RangedSource

DATA = random.Random(1).randbytes(300 * PIECE + 77)


class Elsewhere:
    """Bytes that count how they are read."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.ranges: list[tuple[int, int]] = []

    def read(self, start: int, stop: int) -> bytes:
        self.ranges.append((start, stop))
        assert 0 <= start < stop <= len(self.data)
        return self.data[start:stop]

    def source(self, **more: int) -> RangedSource:
        return RangedSource("elsewhere", len(self.data), self.read, **more)


def test_reading_in_order_asks_for_longer_and_longer_runs_and_for_nothing_twice() -> None:
    elsewhere = Elsewhere()
    with elsewhere.source().open() as file:
        assert b"".join(iter(lambda: file.read(5000), b"")) == DATA
    lengths = [-(-(stop - start) // PIECE) for start, stop in elsewhere.ranges]
    assert lengths[:7] == [1, 2, 4, 8, 16, 32, RUN]
    assert max(lengths) == RUN
    assert sum(stop - start for start, stop in elsewhere.ranges) == len(DATA)


def test_bytes_here_and_there_cost_their_pieces() -> None:
    elsewhere = Elsewhere()
    source = elsewhere.source()
    for offset in (0, 100 * PIECE + 5, 200 * PIECE, len(DATA) - 3):
        with source.open() as file:
            file.seek(offset)
            assert file.read(3) == DATA[offset : offset + 3]
    assert len(elsewhere.ranges) == 4
    assert sum(stop - start for start, stop in elsewhere.ranges) == 3 * PIECE + 77
    assert source.read_at(10, len(DATA)) == source.read_at(10, -1) == b""


def test_memory_is_bounded() -> None:
    elsewhere = Elsewhere()
    source = elsewhere.source(cached=10)
    draw = random.Random(2)
    for _ in range(300):
        offset = draw.randrange(len(DATA))
        assert source.read_at(4, offset) == DATA[offset : offset + 4][: PIECE - offset % PIECE]
        assert len(source._pieces) <= max(10, RUN)
        assert len(source._run_ends) <= len(source._pieces)
