"""A list of memories, read without torch, says what opening each would."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.past.memory import Keep, MemoryFolder
from lookout.past.memory.listing import Extent, extent_of
from tests.unit.past.memory.records import SHAPE, SMALL, prefix
from tests.unit.past.memory.test_folder import create, steps


def opened(folder: Path) -> Extent:
    """The same, from the opened memory."""
    memory = MemoryFolder.open(folder, owner=False).memory
    times = memory.table.times_us.all
    return Extent(len(times), memory.covered_from_us, int(times[-1]) if len(times) else None)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 4, 99])
def test_a_memory_is_listed_as_it_would_be_opened(tmp_path: Path, every: int) -> None:
    """Before the first checkpoint, right behind one, and with records since."""
    one = create(tmp_path, every=every)
    assert extent_of(tmp_path) == opened(tmp_path) == Extent(0, None, None)
    for step in steps(14):
        step(one, one.memory)
        assert extent_of(tmp_path) == opened(tmp_path)
    one.forget(0, 4_000_000)
    assert extent_of(tmp_path) == opened(tmp_path)
    one.close()
    assert extent_of(tmp_path) == opened(tmp_path)


def test_frames_that_a_limit_dropped_are_not_listed_as_held(tmp_path: Path) -> None:
    """A record cannot say what the limit dropped with it: the memory has to be opened until it is closed."""
    keep = Keep(bytes=60 * SHAPE.layers * SHAPE.token_bytes)
    one = MemoryFolder.create(tmp_path, SHAPE, prefix(), SMALL, keep=keep, every=6)
    unknown = 0
    for step in steps(14):
        step(one, one.memory)
        extent = extent_of(tmp_path)
        unknown += extent is None
        assert extent in (None, opened(tmp_path))
    assert unknown > 5
    one.close()
    extent = extent_of(tmp_path)
    assert extent == opened(tmp_path)
    assert extent is not None
    assert extent.first_us


@pytest.mark.parametrize("pattern", ["meta*.bin", "index-*.bin", "records-*.log"])
def test_a_damaged_memory_has_to_be_opened(tmp_path: Path, pattern: str) -> None:
    one = create(tmp_path, every=5)
    for step in steps(9):
        step(one, one.memory)
    one._release()
    assert extent_of(tmp_path) is not None
    for path in tmp_path.glob(pattern):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    assert extent_of(tmp_path) is None


def test_a_memory_whose_slabs_are_cut_short_has_to_be_opened(tmp_path: Path) -> None:
    with create(tmp_path) as one:
        for step in steps(12):
            step(one, one.memory)
    assert extent_of(tmp_path) is not None
    path = sorted(tmp_path.glob("slabs-*.bin"))[-1]
    path.write_bytes(path.read_bytes()[:-1])
    assert extent_of(tmp_path) is None
    path.unlink()
    assert extent_of(tmp_path) is None
