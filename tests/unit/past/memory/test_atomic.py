"""A memory changes whole or not at all: out of memory at any operation, full disks, short writes."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookout.past.memory import CameraMemory, HistoryError, Keep, MemoryFolder
from tests.out_of_memory import OutOfMemoryAt, operations, sampled
from tests.unit.past.memory.records import SHAPE, SMALL, block, memory, prefix, scene_of, state

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEED = 11
Change = Callable[[CameraMemory], object]


def _fed(blocks: int, keep: Keep | None = None) -> CameraMemory:
    history = memory(keep=keep)
    for index in range(blocks):
        history.add(block(index, seed=SEED, scene=scene_of(index, SEED)))
    return history


def _all_clusters(history: CameraMemory) -> dict[int, list[int]]:
    return {layer: [c.id for c in history.clusters(layer)] for layer in range(SHAPE.layers)}


CHANGES: dict[str, tuple[int, Change]] = {
    "first clusters": (3, lambda history: history.add(block(3, seed=SEED, scene=scene_of(3, SEED)))),
    "a block leaves the window": (
        12,
        lambda history: history.add(block(12, seed=SEED, scene=scene_of(12, SEED))),
    ),
    "settle": (13, lambda history: history.settle(_all_clusters(history))),
    "forget": (13, lambda history: history.forget(3_000_000, 9_000_000)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_out_of_memory_at_any_operation_leaves_a_memory_as_it_was(name: str) -> None:
    blocks, change = CHANGES[name]
    keep = Keep(seconds=15)
    undisturbed = _fed(blocks, keep)
    total = operations(lambda: change(undisturbed))
    after = state(undisturbed)
    history = _fed(blocks, keep)
    before = state(history)
    assert before != after
    failures = 0
    for place in sampled(total, 24):
        try:
            with OutOfMemoryAt(place):
                change(history)
        except torch.OutOfMemoryError:
            assert state(history) == before, place
            failures += 1
        else:  # sums that an attempt before has computed are not computed twice
            break
    assert failures > 10
    history = _fed(blocks, keep) if state(history) == after else history
    change(history)
    assert state(history) == after


@pytest.mark.slow
def test_answers_of_readers_stay_as_they_are_while_a_change_fails() -> None:
    history = _fed(12)
    snapshot = history.snapshot()
    seen = [part.clusters for part in snapshot.layers[0].partitions if part is not None]
    bits = [cluster.slab.data.clone() for clusters in seen for cluster in clusters]
    for place in range(1, 60, 7):
        with pytest.raises(torch.OutOfMemoryError), OutOfMemoryAt(place):
            history.add(block(12, seed=SEED, scene=scene_of(12, SEED)))
    now = [cluster.slab.data for clusters in seen for cluster in clusters]
    assert all(torch.equal(one, other) for one, other in zip(bits, now, strict=True))


def _empty(index: int) -> Any:
    full = block(index, seed=SEED)
    none = torch.zeros(SHAPE.layers, SHAPE.kv_heads, 0, SHAPE.head_dim)
    return replace(
        full,
        times_us=np.zeros(0, np.int64),
        embeddings=full.embeddings[:0],
        frame=np.zeros(0, np.int64),
        places=np.zeros((SHAPE.axes, 0), np.int64),
        keys=none,
        values=none,
    )


def test_a_range_is_forgotten_while_the_newest_block_has_no_frames() -> None:
    history = _fed(8)
    history.add(_empty(8))
    assert history.forget(3_000_000, 9_000_000) == 12
    assert [one.block.index for one in history.open] == [7, 8]
    assert history.forget(0, 1 << 60) == 24
    assert [one.block.index for one in history.open] == [8]
    assert history.covered_from_us is None
    history.add(block(9, seed=SEED))
    assert history.snapshot().times_us[-1] == block(9, seed=SEED).times_us[-1]


def test_a_memory_of_blocks_without_frames_is_empty() -> None:
    history = memory()
    history.add(_empty(0))
    with pytest.raises(HistoryError, match="empty"):
        history.snapshot()


# On disk.


def _create(folder: Path, every: int = 99) -> MemoryFolder:
    return MemoryFolder.create(folder, SHAPE, prefix(), SMALL, about={"camera": "gate"}, every=every)


def _feed(folder: MemoryFolder, first: int, last: int) -> None:
    for index in range(first, last):
        folder.add(block(index, seed=SEED, scene=scene_of(index, SEED)))


def _killed(folder: MemoryFolder) -> None:
    """What is left when the process is killed: nothing is closed, the lock is free."""
    assert folder._owner is not None
    folder._owner.close()


class Disk:
    """`os.write` of a disk with so many bytes left: it writes what fits, then fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, handle: int, data: Any) -> int:
        if self.left is None:
            return self._write(handle, data)
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(handle, memoryview(data)[: self.left])
        self.left -= written
        return written


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 1, 40, 500, 2000])
def test_blocks_acknowledged_after_a_full_disk_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    disk = Disk(monkeypatch)
    folder = _create(tmp_path)
    _feed(folder, 0, 6)
    before = state(folder.memory)
    disk.left = left
    with pytest.raises(HistoryError, match=r"records-.*No space left"):
        _feed(folder, 6, 7)
    assert state(folder.memory) == before
    disk.left = None
    _feed(folder, 6, 20)
    expected = state(folder.memory)
    _killed(folder)
    assert state(MemoryFolder.open(tmp_path).memory) == expected == state(_fed(20))


def test_torn_bytes_that_could_not_be_cut_off_are_cut_off_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    folder = _create(tmp_path)
    _feed(folder, 0, 6)
    disk.left = 700
    cut = os.ftruncate

    def refused(handle: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "ftruncate", refused)
    with pytest.raises(HistoryError, match="No space left"):
        _feed(folder, 6, 7)
    disk.left = None
    with pytest.raises(HistoryError, match="Input/output error"):
        _feed(folder, 6, 7)
    monkeypatch.setattr(os, "ftruncate", cut)
    _feed(folder, 6, 9)
    expected = state(folder.memory)
    _killed(folder)
    assert state(MemoryFolder.open(tmp_path).memory) == expected == state(_fed(9))


@pytest.mark.slow
def test_a_checkpoint_that_fails_anywhere_loses_nothing_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for left in (0, 10, 3000, 12_000):
        place = tmp_path / str(left)
        folder = _create(place, every=6)
        _feed(folder, 0, 8)
        folder.checkpoint()
        _feed(folder, 8, 11)
        size = folder.disk_bytes
        disk.left = left
        with pytest.raises(HistoryError, match="No space left"):
            folder.checkpoint()
        assert folder.disk_bytes == size, "what a failed checkpoint wrote is removed"
        disk.left = None
        _feed(folder, 11, 13)
        expected = state(folder.memory)
        image = copy.deepcopy({path.name: path.read_bytes() for path in place.iterdir()})
        _killed(folder)
        assert state(MemoryFolder.open(place, owner=False).memory) == expected == state(_fed(13))
        assert image == {path.name: path.read_bytes() for path in place.iterdir()}
        with MemoryFolder.open(place, every=6) as again:
            _feed(again, 13, 20)
            assert state(again.memory) == state(_fed(20))
        assert state(MemoryFolder.open(place, owner=False).memory) == state(_fed(20))


def test_a_block_stays_acknowledged_when_the_checkpoint_behind_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    folder = _create(tmp_path, every=4)
    record = len((tmp_path / "records-00000000.log").read_bytes())
    _feed(folder, 0, 3)
    record = (len((tmp_path / "records-00000000.log").read_bytes()) - record) // 3
    disk.left = record + 300  # the record fits, its checkpoint does not
    _feed(folder, 3, 4)
    disk.left = None
    assert state(folder.memory) == state(_fed(4))
    _feed(folder, 4, 5)  # and this one brings the checkpoint
    assert (tmp_path / "index-00000001.bin").is_file()
    _killed(folder)
    assert state(MemoryFolder.open(tmp_path).memory) == state(_fed(5))


def test_a_range_that_could_not_be_erased_from_disk_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    folder = _create(tmp_path)
    _feed(folder, 0, 12)
    before = state(folder.memory)
    disk.left = 5000
    with pytest.raises(HistoryError, match="No space left"):
        folder.forget(3_000_000, 9_000_000)
    assert state(folder.memory) == before
    disk.left = None
    assert folder.forget(3_000_000, 9_000_000) == 12
    _killed(folder)
    assert state(MemoryFolder.open(tmp_path, owner=False).memory) == state(folder.memory)


def _read(history: CameraMemory) -> None:
    """Have every index computed: what was read once is not computed again."""
    assert all(index.table is not None for index in history.layers)


@pytest.mark.long
@pytest.mark.parametrize("name", ["checkpoint", "add", "forget"])
def test_out_of_memory_leaves_a_folder_as_it_was(tmp_path: Path, name: str) -> None:
    actions: dict[str, Callable[[MemoryFolder], object]] = {
        "checkpoint": lambda folder: folder.checkpoint(),
        "add": lambda folder: _feed(folder, 12, 13),
        "forget": lambda folder: folder.forget(3_000_000, 9_000_000),
    }
    counted = _create(tmp_path / "counted")
    _feed(counted, 0, 12)
    _read(counted.memory)
    total = operations(lambda: actions[name](counted))
    folder = _create(tmp_path / "disturbed")
    _feed(folder, 0, 12)
    _read(folder.memory)
    before = state(folder.memory)
    for place in sampled(total - 5, 12):
        with pytest.raises(torch.OutOfMemoryError), OutOfMemoryAt(place):
            actions[name](folder)
        assert state(folder.memory) == before, place
        assert state(MemoryFolder.open(folder.folder, owner=False).memory) == before, place
    actions[name](folder)
    assert state(folder.memory) == state(counted.memory)
    _killed(folder)
    assert state(MemoryFolder.open(folder.folder).memory) == state(counted.memory)
