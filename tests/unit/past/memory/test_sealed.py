"""A sealed memory: what is written is read back, a kill leaves one version whole, and damage is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookout.past.memory import CameraMemory, DamagedMemoryError, HistoryError, MemoryFolder, shelf
from lookout.past.memory.catalogue import IndexRange, LayerScenes, index_range
from lookout.past.memory.files import newest_head
from lookout.past.memory.history import Snapshot
from lookout.past.memory.sealed import FolderFiles, SealedMemory, read_head, sweep
from tests.unit.past.memory.records import SHAPE, SMALL, block, prefix, scene_of, state

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
Cluster = tuple[object, ...]


def growing(path: Path, seed: int, blocks: int = 12) -> MemoryFolder:
    folder = MemoryFolder.create(path, SHAPE, prefix(), SMALL, about={"camera": "gate"}, every=5)
    for index in range(blocks):
        folder.add(block(index, seed=seed, scene=scene_of(index, seed)))
    return folder


def sealed(path: Path, seed: int) -> tuple[Path, CameraMemory]:
    """A sealed folder, and the same memory in this process."""
    folder = growing(path, seed)
    folder.seal()
    return path, folder.memory


def clusters_of(part: IndexRange, slabs: list[bytes]) -> list[Cluster]:
    """Clusters without their ids, which forgetting changes in memory only."""
    out: list[Cluster] = []
    for row, slab in enumerate(slabs):
        one = part.cluster(row)
        numbers = (one.counts, one.first, one.last, one.token_frame, one.token_place, one.sums)
        out.append((*(array.tolist() for array in numbers), slab))
    return out


def in_memory(shot: Snapshot) -> list[list[Cluster]]:
    out = []
    for layer, index in enumerate(shot.layers):
        for visual, part in enumerate(index.partitions):
            slabs = [] if part is None else [one.slab.data.numpy().tobytes() for one in part.clusters]
            out.append(clusters_of(index_range(shot, layer, visual, ()), slabs))
    return out


def on_disk(path: Path) -> list[list[Cluster]]:
    head, files = read_head(path), FolderFiles(path)
    out = []
    for place, visual in head.scenes:
        scenes = LayerScenes.unpacked(place.checked(files.read([place])[0], ""), visual, SHAPE)
        for number in range(visual):
            (data,) = files.read([scenes.index_range(head, number)])
            tokens = int(scenes.counts[number])
            part = IndexRange.unpacked(data, int(scenes.clusters[number]), tokens, head)
            slabs = [
                place.checked(slab, "")
                for place, slab in zip(part.slabs, files.read(part.slabs), strict=True)
            ]
            out.append(clusters_of(part, slabs))
    return out


def same(path: Path, memory: CameraMemory) -> None:
    shot, head = memory.snapshot(), read_head(path)
    assert on_disk(path) == in_memory(shot)
    assert np.array_equal(head.times_us, shot.times_us)
    assert np.array_equal(head.present, shot.covered_frames())
    assert (head.tokens, head.forgotten) == (len(shot.token_frame), tuple(shot.forgotten))
    files = FolderFiles(path)
    for index, (place, visual) in zip(shot.layers, head.scenes, strict=True):
        scenes = LayerScenes.unpacked(files.read([place])[0], visual, SHAPE)
        assert torch.equal(scenes.keys, index.keys)
        assert torch.equal(scenes.counts, index.counts)
        assert np.array_equal(scenes.frames, index.frames)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_is_sealed_and_erased_is_what_the_memory_has(tmp_path: Path, seed: int) -> None:
    path, memory = sealed(tmp_path, seed)
    same(path, memory)
    draw = np.random.default_rng(seed)
    for _ in range(3):
        begin, end = sorted(draw.integers(-1_000_000, 19_000_000, 2).tolist())
        with SealedMemory.open(path) as found:
            before = found.head.present.sum()
            frames = found.forget(begin, end)
            assert frames == before - found.head.present.sum()
        memory.forget(begin, end)
        same(path, memory)
        assert shelf.extent_of(path) == found.extent
    names = {file.name.split("-")[0] for file in path.iterdir()}
    assert names == {"catalogue", "head", "owner.lock", "prefix.bin", "slabs"}


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def dying(monkeypatch: pytest.MonkeyPatch, left: dict[str, int]) -> None:
    """Make the call that changes the disk for the last time raise; what is written before it stays."""
    for name in ("fsync", "replace", "unlink"):
        real = getattr(os, name)

        def call(*words: Any, real: Callable[..., Any] = real, **more: Any) -> Any:
            left["calls"] -= 1
            if left["calls"] == 0:
                raise Killed
            return real(*words, **more)

        monkeypatch.setattr(os, name, call)


@pytest.mark.slow
@pytest.mark.parametrize("erases", [False, True])
def test_a_kill_at_any_call_leaves_the_old_version_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, erases: bool
) -> None:
    folder = growing(tmp_path / "whole", 7)
    folder.checkpoint()
    grown = state(folder.memory)
    folder.memory.seal()
    whole = in_memory(folder.memory.snapshot())
    folder.memory.forget(3_000_000, 9_000_000)
    versions = [whole, in_memory(folder.memory.snapshot())]
    folder._release()
    if erases:
        MemoryFolder.open(tmp_path / "whole").seal()
    left = {"calls": -1}
    dying(monkeypatch, left)
    for calls in range(1, 100):
        path = tmp_path / str(calls)
        shutil.copytree(tmp_path / "whole", path)
        try:
            if erases:
                with SealedMemory.open(path) as found:
                    left["calls"] = calls
                    found.forget(3_000_000, 9_000_000)
            else:
                with MemoryFolder.open(path) as opened:
                    left["calls"] = calls
                    opened.seal()
            left["calls"] = -1
            break
        except Killed:
            left["calls"] = -1
        if newest_head(path) is None:
            assert not erases
            assert state(MemoryFolder.open(path, owner=False).memory) == grown
        else:
            sweep(path, read_head(path))  # as who opens the chapters next does
            version = read_head(path).present.all()
            assert on_disk(path) == versions[0 if version else 1]
            assert len(list(path.iterdir())) == 5
    assert calls > 8
    assert on_disk(path) == versions[erases]


@pytest.mark.parametrize("kind", ["head", "catalogue", "slabs", "prefix"])
def test_a_flipped_bit_or_a_missing_end_is_named(tmp_path: Path, kind: str) -> None:
    path, _ = sealed(tmp_path, 3)
    (file,) = path.glob(f"{kind}*")
    sound = file.read_bytes()
    for place in np.random.default_rng(1).integers(0, len(sound), 12).tolist():
        flipped = sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1 :]
        for data in (flipped, sound[:place]):
            file.write_bytes(data)
            with pytest.raises(DamagedMemoryError) as raised:
                shelf.check(path)
            assert kind in str(raised.value)


def test_what_is_damaged_is_left_out_and_the_rest_stays(tmp_path: Path) -> None:
    path, _ = sealed(tmp_path / "gate" / "1", 3)
    (file,) = path.glob("slabs-*")
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    before = on_disk_counts(path)
    ((entry, damage),) = shelf.repair(tmp_path)
    assert entry.camera == "gate"
    assert "the KV of 1 clusters" in damage[0]
    assert shelf.check(path) == before - 1
    assert not read_head(path).present.all()
    assert [damage for _, damage in shelf.repair(tmp_path)] == [[]]


def on_disk_counts(path: Path) -> int:
    head, files = read_head(path), FolderFiles(path)
    counts = 0
    for place, visual in head.scenes:
        counts += int(LayerScenes.unpacked(files.read([place])[0], visual, SHAPE).clusters.sum())
    return counts


def test_a_chapter_of_another_format_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookout.past.memory.catalogue.FORMAT", 1)
    path, _ = sealed(tmp_path, 3)
    monkeypatch.undo()
    message = r"has format 1, but this release reads only format 2.*lookout memory rebuild"
    with pytest.raises(HistoryError, match=message):
        read_head(path)
