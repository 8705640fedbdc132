"""A sealed memory: four files that never change. Erasing and repairing write a new version of the files.

    slabs-VERSION.bin      the KV of each cluster, by layer and visual cluster
    catalogue-VERSION.bin  for each layer, its index ranges and then its scenes (`catalogue`)
    prefix.bin             the system prefix
    head-VERSION.bin       is read first, and refers to the other files

The head is renamed into place last, when the other files have reached the disk, so a version is either
complete or absent. Afterwards, all other files in the folder are removed: those of the previous version, or
those of the growing memory (`folder`). The durable tier stores the same files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import torch

from lookout.disk import read_file, replace_file, sync_folder, write_file
from lookout.past.memory.catalogue import (
    PREFIX,
    ByteRange,
    Head,
    IndexRange,
    LayerScenes,
    index_range,
    packed_prefix,
)
from lookout.past.memory.errors import DamagedMemoryError, HistoryError
from lookout.past.memory.files import LOCK, fed_at, head_name, lock, newest_head
from lookout.past.memory.history import Snapshot
from lookout.past.memory.packing import checksum
from lookout.past.memory.types import Extent, Ints, KVShape, raw

Scene = tuple[IndexRange, Iterable[memoryview]]
"""A visual cluster to write: its index range, whose slabs get new places, and the KV of its semantic
clusters."""


def write_sealed(
    folder: Path, snapshot: Snapshot, shape: KVShape, about: Mapping[str, Any], fed_s: float
) -> Head:
    """Write a snapshot as a sealed memory, and return its head.

    Args:
        folder: its folder.
        snapshot: the snapshot; its window must be empty.
        shape: shape of one token's KV.
        about: facts about the memory.
        fed_s: when a block was last added, Unix seconds.

    Raises:
        HistoryError: a file could not be written; the folder's memory is unchanged.
    """

    def layer_of(layer: int) -> Iterator[Scene]:
        for visual, part in enumerate(snapshot.layers[layer].partitions):
            clusters = () if part is None else part.clusters
            yield (
                index_range(snapshot, layer, visual, ()),
                [raw(cluster.slab.data).data for cluster in clusters],
            )

    head = Head.of(snapshot, shape, about, sealed=True, catalogue="", slabs="", scenes=(), window=())
    try:
        replace_file(folder / PREFIX, packed_prefix(snapshot.prefix))
    except OSError as error:
        raise HistoryError(f"{folder}: the memory could not be sealed ({error.strerror})") from error
    return _write(folder, head, map(layer_of, range(shape.layers)), fed_s)


def _write(folder: Path, head: Head, layers: Iterable[Iterable[Scene]], fed_s: float) -> Head:
    """Write a version and return its head. The head is packed last, because iterating over `layers` may find
    lost clusters and change `head.present`."""
    slabs, catalogue, path = (folder / name for name in file_names(head.version)[1:])
    written: list[list[IndexRange]] = []

    def slab_bytes() -> Iterator[memoryview]:
        offset = 0
        for layer in layers:
            written.append([])
            for part, data in layer:
                places = []
                for slab in data:
                    places.append(ByteRange(slabs.name, offset, len(slab), checksum(slab)))
                    offset += len(slab)
                    yield slab
                written[-1].append(replace(part, slabs=tuple(places)))

    scenes: list[tuple[ByteRange, int]] = []

    def records() -> Iterator[bytes]:
        offset = 0
        for parts in written:
            packed = [part.packed() for part in parts]
            ends = offset + np.cumsum([0, *map(len, packed)])
            data = LayerScenes.of(parts, ends[:-1], head.shape).packed()
            scenes.append((ByteRange(catalogue.name, int(ends[-1]), len(data), checksum(data)), len(parts)))
            offset = int(ends[-1]) + len(data)
            yield from (*packed, data)

    try:
        write_file(slabs, slab_bytes())
        write_file(catalogue, records())
        sync_folder(folder)
        head = replace(head, catalogue=catalogue.name, slabs=slabs.name, scenes=tuple(scenes))
        replace_file(path, head.packed())
        os.utime(path, (fed_s, fed_s))
    except Exception as error:
        for file in (slabs, catalogue, path):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise HistoryError(f"{folder}: the memory could not be sealed ({error.strerror})") from error
        raise
    return head


def read_head(folder: Path) -> Head:
    """Read the head of a sealed memory's newest version.

    Raises:
        HistoryError: the memory is not sealed, or its head is damaged.
    """
    path = newest_head(folder)
    if path is None:
        raise HistoryError(f"{folder} contains no sealed memory")
    try:
        return Head.unpacked(read_file(path), str(path))
    except OSError as error:
        raise HistoryError(f"{path}: the file cannot be read ({error.strerror})") from error
    except (KeyError, TypeError) as error:
        raise DamagedMemoryError(f"{path}: the file is damaged: it is not a memory's head") from error


def file_names(version: int) -> tuple[str, ...]:
    """Return the names of the files of a version, in the order in which they are written."""
    return PREFIX, f"slabs-{version:08d}.bin", f"catalogue-{version:08d}.bin", head_name(version)


def sweep(folder: Path, head: Head) -> None:
    """Remove all files that do not belong to the newest version, such as those that a killed process left
    behind.

    Raises:
        HistoryError: a file could not be removed.
    """
    current = {*file_names(head.version), LOCK}
    stale = [path for path in folder.iterdir() if path.name not in current]
    for path in stale:
        try:
            path.unlink()
        except OSError as error:
            raise HistoryError(f"{path}: the file cannot be removed ({error.strerror})") from error
    if stale:
        sync_folder(folder)


@dataclass(frozen=True, eq=False)
class FolderFiles:
    """Reads the files of a sealed memory in a folder."""

    folder: Path

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`. Each file is read in order of offset.

        Raises:
            HistoryError: a file cannot be read, or its name leads out of the folder.
        """
        out = [b""] * len(ranges)
        by_file: dict[str, list[int]] = {}
        for number, place in enumerate(ranges):
            by_file.setdefault(place.file, []).append(number)
        for name, numbers in by_file.items():
            if Path(name).name != name or "\0" in name:
                raise HistoryError(f"{name!r} is not a file of {self.folder}")
            try:
                with open(self.folder / name, "rb") as file:
                    for number in sorted(numbers, key=lambda number: ranges[number].offset):
                        file.seek(ranges[number].offset)
                        out[number] = file.read(ranges[number].length)
            except OSError as error:
                raise HistoryError(
                    f"{self.folder / name}: the file cannot be read ({error.strerror})"
                ) from error
        return out


class SealedMemory:
    """Checks or repairs a sealed memory, or erases frames from it.

    Attributes:
        folder: the memory's folder.
        head: the head of its newest version.
        damage: sentences about lost parts that were found.
    """

    def __init__(self, folder: Path, owner: IO[str] | None) -> None:
        """Call `SealedMemory.open` instead."""
        self.folder, self.head = folder, read_head(folder)
        self.damage: list[str] = []
        self._owner, self._files = owner, FolderFiles(folder)
        self._lost: dict[str, list[Ints]] = {}

    @classmethod
    def open(cls, folder: Path, *, owner: bool = True, salvage: bool = False) -> Self:
        """Open a folder's sealed memory.

        Args:
            folder: the folder.
            owner: whether to open the memory for changes; otherwise only for reading.
            salvage: whether to rewrite the memory without damaged parts, if there are any; requires `owner`.

        Raises:
            DamagedMemoryError: the head or the scenes of a layer are damaged.
            HistoryError: the memory is not sealed, or could not be written.
            OwnedMemoryError: another process is changing the memory.
        """
        with contextlib.ExitStack() as stack:
            opened = cls(folder, stack.enter_context(lock(folder)) if owner else None)
            if salvage:
                opened.check()
                if opened.damage:
                    opened._rewrite(np.zeros(len(opened.head.times_us), dtype=bool), ())
            stack.pop_all()
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owner is not None:
            self._owner.close()

    @property
    def extent(self) -> Extent:
        """The frames and times that the memory covers."""
        times, present = self.head.times_us, np.flatnonzero(self.head.present)
        return Extent(len(times), int(times[present[0]]) if len(present) else None, int(times[-1]))

    def check(self) -> int:
        """Compare all files with their checksums; `damage` then lists what is lost.

        Returns:
            The number of intact clusters.
        """
        present, prefix = self.head.present.copy(), self.head.prefix
        prefix.checked(self._read([prefix])[0], str(self.folder))
        layers = self._remaining(np.zeros(len(present), dtype=bool), present)
        return sum(len(part.ids) for layer in layers for part, _ in layer)

    def forget(self, begin_us: int, end_us: int) -> int:
        """Erase a range of stream time (microseconds). When this returns, no file in the folder contains data
        of the range. Damaged parts are removed, too.

        Returns:
            The number of frames erased.

        Raises:
            HistoryError: a file could not be changed; erase the range again.
        """
        times = self.head.times_us
        erased = (times >= begin_us) & (times < end_us)
        frames = int((self.head.present & erased).sum())
        self._rewrite(erased, ((begin_us, end_us),))
        return frames

    def _rewrite(self, erased: np.ndarray, forgotten: tuple[tuple[int, int], ...]) -> None:
        """Write the next version, which omits the erased frames, bool [frames]."""
        old = self.head
        head = replace(
            old,
            version=old.version + 1,
            present=old.present & ~erased,
            forgotten=(*old.forgotten, *forgotten),
        )
        fed_s = fed_at(self.folder)
        self.head = _write(self.folder, head, self._remaining(erased, head.present), fed_s)
        sweep(self.folder, self.head)

    def _remaining(self, erased: np.ndarray, present: np.ndarray) -> Iterator[Iterator[Scene]]:
        """Yield, for each layer, its visual clusters without erased frames and damaged parts. Frames of which
        a part is lost are removed from `present`."""
        self._lost = {}
        for place, visual in self.head.scenes:
            (data,) = self._files.read([place])
            data = place.checked(data, str(self.folder))
            scenes = LayerScenes.unpacked(data, visual, self.head.shape)
            yield (self._scene(scenes, number, erased) for number in range(visual))
        for frames in self._lost.values():
            present[np.concatenate(frames)] = False
        self.damage = [self._sentence(name, frames) for name, frames in self._lost.items()]

    def _scene(self, scenes: LayerScenes, visual: int, erased: np.ndarray) -> Scene:
        """Return a visual cluster without erased frames and damaged parts."""
        head, shape = self.head, self.head.shape
        place, parts, slabs = scenes.index_range(head, visual), [], []
        try:
            (data,) = self._read([place])
            clusters = IndexRange.unpacked(
                data, int(scenes.clusters[visual]), int(scenes.counts[visual]), head
            )
        except (DamagedMemoryError, ValueError):
            if scenes.counts[visual]:
                first, last = scenes.frames[:, visual]
                self._lost.setdefault(place.file, []).append(np.arange(first, last + 1))
            return IndexRange.joined((), shape), []
        for row, slab in enumerate(self._read(clusters.slabs)):
            part = clusters.cluster(row)
            try:
                part.slabs[0].checked(slab, str(self.folder))
            except DamagedMemoryError:
                self._lost.setdefault(head.slabs, []).append(part.token_frame)
                continue
            stays = ~erased[part.token_frame]
            if stays.any():
                remainder, data = (part, slab) if stays.all() else _without(part, slab, stays, shape)
                parts.append(remainder)
                slabs.append(memoryview(data))
        return IndexRange.joined(parts, shape), slabs

    def _read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read ranges. Ranges of a missing file are empty."""
        try:
            return self._files.read(ranges)
        except HistoryError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return [b""] * len(ranges)

    def _sentence(self, name: str, lost: Sequence[Ints]) -> str:
        path, times = self.folder / name, self.head.times_us[np.concatenate(lost)] / 1e6
        reason = "is damaged: its checksum does not match" if path.is_file() else "is missing"
        return (
            f"{path}: {reason}; the KV of {len(lost)} clusters, between {times.min():g} s and "
            f"{times.max():g} s of the stream, is lost"
        )


def _without(cluster: IndexRange, data: bytes, stays: np.ndarray, shape: KVShape) -> tuple[IndexRange, bytes]:
    """Return a cluster and its slab with only the tokens that stay; the cluster's sums are computed again."""
    slab = np.frombuffer(data, np.uint8).reshape(len(stays), -1)[stays]
    frames = cluster.token_frame[stays]
    tokens = torch.from_numpy(slab).view(shape.dtype).view(len(frames), 2, -1)
    remainder = replace(
        cluster,
        counts=np.array([len(frames)]),
        first=np.array([frames.min()]),
        last=np.array([frames.max()]),
        sums=tokens.to(shape.wide).sum(0)[:1],
        token_frame=frames,
        token_place=cluster.token_place[:, stays],
    )
    return remainder, slab.tobytes()
