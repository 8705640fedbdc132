"""A memory as byte ranges for readers in other processes: a head, scenes, index ranges and slabs.

A memory is one catalogue file and files of slabs. The head, which is read first and whole, names the byte
range and checksum of each layer's scenes (which the first stage of retrieval compares). The scenes name the
index range of each visual cluster; the index range names the slab of each of its clusters. So anyone who can
read byte ranges (of a file, from another pod, from an object store) reads the same memory, bit for bit.

A memory that still grows is catalogued from a snapshot, and its files exist only as ranges. Byte order is
little endian; integers have 64 bits unless said otherwise.

    scenes of a layer   keys float16 [visual, width]; tokens, first frame, last frame, clusters and offset of
                        the index range [visual]
    index range         ids, tokens, first frame, last frame, file and offset of the slab [clusters];
                        checksum of the slab, 16 bytes [clusters]; keys [clusters, width] in the width of
                        statistics; frame int32 [tokens] and place int32 [axes, tokens] of every token;
                        16 bytes of checksum
    slab                K and V [tokens, 2, kv_heads, head_dim]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lookout.disk import replace_file, write_file
from lookout.past.memory.errors import DamagedMemoryError, HistoryError
from lookout.past.memory.folder import MemoryFolder
from lookout.past.memory.history import LayerIndex, Snapshot
from lookout.past.memory.index import Place
from lookout.past.memory.packing import checksum, ints, pack, unpack_file
from lookout.past.memory.types import Ints, KVShape, Prefix, raw

CATALOGUE, SLABS, WINDOW = "catalogue", "slabs", "window"
"""Names of the files of a memory that still grows."""

CHECKSUM_BYTES = 16
_ROW_BYTES = 6 * 8 + CHECKSUM_BYTES


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [offset, offset + length) of a file of a memory; `checksum` is empty if it is unknown."""

    file: str
    offset: int
    length: int
    checksum: bytes = b""

    def checked(self, data: bytes, where: str) -> bytes:
        """Return the data if it is what the range names.

        Raises:
            DamagedMemoryError: its length or its checksum does not match.
        """
        if len(data) != self.length or (self.checksum and checksum(data) != self.checksum):
            raise DamagedMemoryError(
                f"{where}: {self.file}, bytes {self.offset} to {self.offset + self.length}: damaged: "
                "the checksum does not match"
            )
        return data


class Files(Protocol):
    """Reads ranges of a memory's files."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read the bytes of each range, in their order.

        Raises:
            HistoryError: they are not available here.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WindowBlock:
    """A block that is read whole: its rows without their KV.

    Attributes:
        first_frame: number in the memory of its first frame; `frames`: how many it has.
        frame: int64 [rows], number in the memory of each row's frame.
        places: int64 [axes, rows].
        data: where the KV of each layer lies.
    """

    first_frame: int
    frames: int
    frame: Ints
    places: Ints
    data: tuple[ByteRange, ...]

    @property
    def rows(self) -> int:
        """Tokens of the block."""
        return len(self.frame)


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The part of a memory that is read first.

    Attributes:
        about: facts about the memory, as JSON.
        version: counts every change of the memory.
        sealed: whether it takes in no more blocks.
        shape: shape of one token's KV.
        prefix: the system prefix.
        times_us: int64 [frames], stream time of every frame.
        present: bool [frames], whether KV of the frame is there, or it never had a token.
        tokens: number of tokens of all frames, those no longer held included.
        step: int64 [axes]; `extent` likewise (of the newest block).
        catalogue: name of the file of scenes and index ranges; `files`: names of those of slabs.
        scenes: where each layer's scenes lie, and how many visual clusters they have.
        window: the blocks that are read whole, oldest first.
        forgotten: ranges of stream time that were erased.
    """

    about: dict[str, Any]
    version: int
    sealed: bool
    shape: KVShape
    prefix: Prefix
    times_us: Ints
    present: np.ndarray
    tokens: int
    step: Ints
    extent: Ints
    catalogue: str
    files: tuple[str, ...]
    scenes: tuple[tuple[ByteRange, int], ...]
    window: tuple[WindowBlock, ...]
    forgotten: tuple[tuple[int, int], ...] = ()

    def packed(self, *, whole: bool = True) -> bytes:
        """Pack the head into one record, with its prefix only if `whole`."""
        arrays: dict[str, Any] = {
            **(_prefix_arrays(self.prefix) if whole else {}),
            "times": self.times_us,
            "present": self.present,
            "step": self.step,
            "extent": self.extent,
        }
        for number, block in enumerate(self.window):
            arrays[f"window{number}.frame"], arrays[f"window{number}.places"] = block.frame, block.places
        header = {
            "about": self.about,
            "version": self.version,
            "sealed": self.sealed,
            "shape": {**asdict(self.shape), "dtype": str(self.shape.dtype).removeprefix("torch.")},
            "tokens": self.tokens,
            "forgotten": self.forgotten,
            "catalogue": self.catalogue,
            "files": self.files,
            "scenes": [[*_range_facts(place), count] for place, count in self.scenes],
            "window": [
                {
                    "first_frame": block.first_frame,
                    "frames": block.frames,
                    "data": [_range_facts(place) for place in block.data],
                }
                for block in self.window
            ],
        }
        return pack(header, arrays)

    @classmethod
    def unpacked(cls, data: bytes, where: str, prefix: Prefix | None = None) -> Head:
        """Unpack a head from its record; `prefix` is given if the record leaves it out.

        Raises:
            DamagedMemoryError: it is damaged.
        """
        record = unpack_file(data, where)
        header, arrays = record.header, record.arrays
        shape = {**header["shape"], "dtype": getattr(torch, header["shape"]["dtype"])}
        return cls(
            about=header["about"],
            version=header["version"],
            sealed=header["sealed"],
            shape=KVShape(**shape),
            prefix=prefix or _prefix_of(arrays),
            times_us=ints(arrays["times"]),
            present=arrays["present"].numpy(),
            tokens=header["tokens"],
            step=ints(arrays["step"]),
            extent=ints(arrays["extent"]),
            catalogue=header["catalogue"],
            files=tuple(header["files"]),
            scenes=tuple((_range_of(facts[:4]), facts[4]) for facts in header["scenes"]),
            window=tuple(
                WindowBlock(
                    block["first_frame"],
                    block["frames"],
                    ints(arrays[f"window{number}.frame"]),
                    ints(arrays[f"window{number}.places"]),
                    tuple(_range_of(facts) for facts in block["data"]),
                )
                for number, block in enumerate(header["window"])
            ),
            forgotten=tuple((begin, end) for begin, end in header.get("forgotten", ())),
        )


def packed_prefix(prefix: Prefix) -> bytes:
    """Pack a prefix into one record, for heads that leave it out."""
    return pack({}, _prefix_arrays(prefix))


def unpacked_prefix(data: bytes, where: str) -> Prefix:
    """Unpack a prefix from its record.

    Raises:
        DamagedMemoryError: it is damaged.
    """
    return _prefix_of(unpack_file(data, where).arrays)


def _prefix_arrays(prefix: Prefix) -> dict[str, Any]:
    return {"positions": prefix.positions, "prefix.keys": prefix.keys, "prefix.values": prefix.values}


def _prefix_of(arrays: Mapping[str, torch.Tensor]) -> Prefix:
    return Prefix(ints(arrays["positions"]), arrays["prefix.keys"], arrays["prefix.values"])


def _range_facts(place: ByteRange) -> list[Any]:
    return [place.file, place.offset, place.length, place.checksum.hex()]


def _range_of(facts: Sequence[Any]) -> ByteRange:
    return ByteRange(facts[0], facts[1], facts[2], bytes.fromhex(facts[3]))


@dataclass(frozen=True, slots=True, eq=False)
class LayerScenes:
    """The visual clusters of one layer, as the first stage of retrieval compares them.

    Attributes:
        keys: [visual, width], mean raw key of each visual cluster, rounded to half precision.
        counts: int64 [visual], tokens of each.
        frames: int64 [2, visual], first and last frame of each.
        clusters: int64 [visual], number of semantic clusters of each.
        offsets: int64 [visual], where the index range of each begins in the catalogue.
    """

    keys: torch.Tensor
    counts: torch.Tensor
    frames: Ints
    clusters: Ints
    offsets: Ints

    @classmethod
    def unpacked(cls, data: bytes, visual: int, shape: KVShape) -> LayerScenes:
        """Unpack the bytes of a layer's scenes; `visual` is the number of visual clusters."""
        cut = 2 * visual * shape.width
        keys = np.frombuffer(data, np.float16, visual * shape.width).reshape(visual, shape.width)
        numbers = np.frombuffer(data, np.int64, 5 * visual, cut).reshape(5, visual)
        return cls(
            keys=torch.from_numpy(keys.copy()).to(shape.wide),
            counts=torch.from_numpy(numbers[0].copy()),
            frames=numbers[1:3].copy(),
            clusters=numbers[3],
            offsets=numbers[4],
        )

    def index_range(self, head: Head, visual: int) -> ByteRange:
        """Return where the index range of a visual cluster lies."""
        length = range_bytes(int(self.clusters[visual]), int(self.counts[visual]), head.shape)
        return ByteRange(head.catalogue, int(self.offsets[visual]), length)


def scenes_bytes(visual: int, shape: KVShape) -> int:
    """Bytes of the scenes of a layer with `visual` visual clusters."""
    return visual * (2 * shape.width + 5 * 8)


def range_bytes(clusters: int, tokens: int, shape: KVShape) -> int:
    """Bytes of an index range."""
    keys = clusters * shape.width * shape.wide.itemsize
    return clusters * _ROW_BYTES + keys + tokens * 4 * (1 + shape.axes) + CHECKSUM_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class IndexRange:
    """The semantic clusters of one visual cluster in one layer, and where their slabs lie.

    Attributes:
        ids: int64 [clusters]; `counts`, `first` and `last` (frames) likewise.
        keys: [clusters, width], mean raw keys.
        slabs: where the KV of each cluster lies.
        token_frame: int64 [tokens], the frame of every token, cluster after cluster.
        token_place: int64 [axes, tokens].
    """

    ids: Ints
    counts: Ints
    first: Ints
    last: Ints
    keys: torch.Tensor
    slabs: tuple[ByteRange, ...]
    token_frame: Ints
    token_place: Ints

    @classmethod
    def unpacked(cls, data: bytes, clusters: int, tokens: int, head: Head) -> IndexRange:
        """Unpack the bytes of a range.

        Raises:
            DamagedMemoryError: its checksum does not match.
        """
        shape = head.shape
        if checksum(data[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
            raise DamagedMemoryError(
                f"{head.catalogue}: an index range is damaged: its checksum does not match"
            )
        numbers = np.frombuffer(data, np.int64, 6 * clusters).reshape(6, clusters)
        place = numbers.nbytes
        sums = [
            data[place + CHECKSUM_BYTES * row : place + CHECKSUM_BYTES * (row + 1)] for row in range(clusters)
        ]
        place += CHECKSUM_BYTES * clusters
        kind = np.float64 if shape.wide == torch.float64 else np.float32
        keys = np.frombuffer(data, kind, clusters * shape.width, place).reshape(clusters, shape.width)
        place += keys.nbytes
        frame = np.frombuffer(data, np.int32, tokens, place)
        places = np.frombuffer(data, np.int32, tokens * shape.axes, place + frame.nbytes)
        return cls(
            ids=numbers[0],
            counts=numbers[1],
            first=numbers[2],
            last=numbers[3],
            keys=torch.from_numpy(keys.copy()),
            slabs=tuple(
                ByteRange(
                    head.files[file], offset, count * shape.token_bytes, sums[row].rstrip(b"\0") and sums[row]
                )
                for row, (count, file, offset) in enumerate(numbers[[1, 4, 5]].T.tolist())
            ),
            token_frame=frame.astype(np.int64),
            token_place=places.reshape(shape.axes, tokens).astype(np.int64),
        )


@dataclass(eq=False)
class Catalogue:
    """The catalogue of a snapshot; each record is made when it is asked for.

    Attributes:
        shot: the snapshot of the memory.
        shape: shape of its KV.
        about: facts about the memory.
        sealed: whether it takes in no more blocks.
        where: place of every cluster's slab by the cluster's id; None: the places in `SnapshotFiles`.
        name: name of the catalogue's file.
    """

    shot: Snapshot
    shape: KVShape
    about: Mapping[str, Any]
    sealed: bool = False
    where: Mapping[int, Place] | None = None
    name: str = CATALOGUE
    starts: Ints = field(init=False)
    lengths: Ints = field(init=False)

    def __post_init__(self) -> None:
        layers, shape = self.shot.layers, self.shape
        sizes = [scenes_bytes(len(index.counts), shape) for index in layers]
        self.homes = [(number, -1) for number in range(len(layers))]
        for number, index in enumerate(layers):
            clusters = np.diff(index.table.starts)
            for visual, (count, tokens) in enumerate(
                zip(clusters.tolist(), index.counts.tolist(), strict=True)
            ):
                self.homes.append((number, visual))
                sizes.append(range_bytes(count, tokens, shape))
        self.lengths = np.array(sizes, np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        # The offsets of slabs in a memory that still grows: cluster after cluster, layer after layer.
        tokens = np.concatenate([np.zeros(0, np.int64), *(index.table.counts for index in layers)])
        self.slab_starts = (np.cumsum(tokens) - tokens) * shape.token_bytes
        self.slab_layers = np.cumsum([0, *(len(index.table.ids) for index in layers)])
        self._names = sorted({place.file for place in (self.where or {}).values()}) or [SLABS]

    def record(self, number: int) -> bytes:
        """Make one record of the catalogue's file."""
        layer, visual = self.homes[number]
        return self._scenes(layer) if visual < 0 else self._range(layer, visual)

    @cached_property
    def head(self) -> Head:
        """The head of the memory."""
        shot, shape = self.shot, self.shape
        scenes = []
        for layer, index in enumerate(shot.layers):
            place = ByteRange(
                self.name, int(self.starts[layer]), int(self.lengths[layer]), checksum(self._scenes(layer))
            )
            scenes.append((place, len(index.counts)))
        window, offset = [], 0
        for entry in shot.window:
            size = entry.block.rows * shape.token_bytes
            data = tuple(ByteRange(WINDOW, offset + layer * size, size) for layer in range(shape.layers))
            offset += shape.layers * size
            frame = entry.block.frame + entry.first_frame
            block = WindowBlock(entry.first_frame, entry.block.frames, frame, entry.block.places, data)
            window.append(block)
        return Head(
            about=dict(self.about),
            version=shot.version,
            sealed=self.sealed,
            shape=shape,
            prefix=shot.prefix,
            times_us=shot.times_us,
            present=shot.covered_frames(),
            tokens=len(shot.token_frame),
            step=shot.step,
            extent=shot.extent,
            catalogue=self.name,
            files=tuple(self._names),
            scenes=tuple(scenes),
            window=tuple(window),
            forgotten=shot.forgotten,
        )

    def _scenes(self, layer: int) -> bytes:
        index: LayerIndex = self.shot.layers[layer]
        begun = len(self.shot.layers) + sum(len(other.counts) for other in self.shot.layers[:layer])
        numbers = np.stack(
            [
                index.counts.numpy(),
                index.frames[0],
                index.frames[2],
                np.diff(index.table.starts),
                self.starts[begun : begun + len(index.counts)],
            ]
        )
        return bytes(raw(index.keys.half())) + numbers.astype(np.int64).tobytes()

    def _range(self, layer: int, visual: int) -> bytes:
        index = self.shot.layers[layer]
        rows, _ = index.table.rows(np.array([visual], np.int64))
        clusters, table = index.clusters(rows), index.table
        if self.where is None:
            files = np.zeros(len(rows), np.int64)
            offsets = self.slab_starts[self.slab_layers[layer] + rows]
            sums = bytes(CHECKSUM_BYTES * len(rows))
        else:
            places = [self.where[cluster.id] for cluster in clusters]
            files = np.array([self._names.index(place.file) for place in places], np.int64)
            offsets = np.array([place.offset for place in places], np.int64)
            sums = b"".join(place.checksum for place in places)
        numbers = np.stack(
            [
                table.ids[rows],
                table.counts[rows],
                table.frames[0, rows],
                table.frames[2, rows],
                files,
                offsets,
            ]
        )
        tokens = np.concatenate([np.zeros(0, np.int64), *(cluster.slab.tokens for cluster in clusters)])
        frame, place = self.shot.lookup(tokens)
        body = b"".join(
            (
                numbers.astype(np.int64).tobytes(),
                sums,
                bytes(raw(table.keys[rows])),
                frame.astype(np.int32).tobytes(),
                place.astype(np.int32).tobytes(),
            )
        )
        return body + checksum(body)


@dataclass(frozen=True, eq=False)
class SnapshotFiles:
    """The files of a memory that still grows, as ranges of a snapshot."""

    catalogue: Catalogue

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of whole records: a layer's scenes, an index range, a slab, a block of the window.

        Raises:
            HistoryError: a range is not one of these.
        """
        return [self._one(place) for place in ranges]

    def _one(self, place: ByteRange) -> bytes:
        catalogue = self.catalogue
        if place.file == CATALOGUE:
            number = _number(catalogue.starts, place.offset)
            if number is not None and catalogue.lengths[number] == place.length:
                return catalogue.record(number)
        elif place.file == SLABS:
            row = _number(catalogue.slab_starts, place.offset)
            if row is not None:
                layer = int(np.searchsorted(catalogue.slab_layers, row, side="right")) - 1
                index = catalogue.shot.layers[layer]
                (cluster,) = index.clusters(np.array([row - catalogue.slab_layers[layer]], np.int64))
                if cluster.slab.bytes == place.length:
                    return bytes(raw(cluster.slab.data))
        elif place.file == WINDOW:
            for entry, block in zip(catalogue.shot.window, catalogue.head.window, strict=True):
                if place.length and block.data[0].offset <= place.offset <= block.data[-1].offset:
                    layer = (place.offset - block.data[0].offset) // place.length
                    if block.data[layer] == place:
                        keys, values = entry.block.keys[layer], entry.block.values[layer]
                        return bytes(raw(torch.stack([keys.transpose(0, 1), values.transpose(0, 1)], 1)))
        if not place.length:
            return b""
        raise HistoryError(
            f"{place.file}: bytes {place.offset} to {place.offset + place.length} are not a record of "
            f"version {catalogue.shot.version} of this memory"
        )


def _number(starts: Ints, offset: int) -> int | None:
    """Return which record begins at an offset: the last one, if empty records begin there too."""
    number = int(np.searchsorted(starts, offset, side="right")) - 1
    return number if number >= 0 and starts[number] == offset else None


@dataclass(frozen=True, eq=False)
class FolderFiles:
    """The files of a sealed memory in a folder."""

    folder: Path

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read the bytes of each range; those of one file are read in order of their offset.

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
                raise HistoryError(f"{self.folder / name}: cannot be read ({error.strerror})") from error
        return out


def write_catalogue(folder: MemoryFolder) -> Path:
    """Write head and catalogue of a sealed memory next to its checkpoint, the head last.

    Returns:
        The head's file.

    Raises:
        HistoryError: the memory is not sealed, or a file could not be written.
    """
    if not folder.memory.sealed:
        raise HistoryError(f"{folder.folder}: only a sealed memory is catalogued")
    name = f"catalogue-{folder.version:08d}.bin"
    catalogue = Catalogue(
        folder.memory.snapshot(), folder.memory.shape, folder.about, True, folder.places, name
    )
    head = head_path(folder.folder, folder.version)
    try:
        write_file(folder.folder / name, (catalogue.record(n) for n in range(len(catalogue.starts))))
        replace_file(head, catalogue.head.packed())
        for pattern in ("catalogue-*.bin", "head-*.bin"):
            for path in folder.folder.glob(pattern):
                if path.name not in (name, head.name):
                    path.unlink()
    except OSError as error:
        raise HistoryError(
            f"{folder.folder}: its catalogue could not be written ({error.strerror})"
        ) from error
    return head


def head_path(folder: Path, version: int) -> Path:
    """Return where the head of a sealed memory lies, by the version of its checkpoint."""
    return folder / f"head-{version:08d}.bin"
