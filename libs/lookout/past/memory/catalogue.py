"""The format of a memory for readers in other processes: byte ranges of a head, scenes, index ranges and
slabs.

Readers start at the head, which they read whole. It has the byte range and checksum of each layer's scenes,
which the first stage of retrieval compares. The scenes have the byte range of each visual cluster's index
range, and an index range has the byte range of each semantic cluster's slab. Any source that can read byte
ranges (a file, another pod, an object store) therefore gives the same memory, bit for bit.

A sealed memory consists of these files (`sealed`). For a memory that still grows, the ranges are built from a
snapshot on demand. Byte order is little endian; integers have 64 bits unless stated otherwise.

    prefix              a record of its positions, keys and values; checksum in the head
    scenes of a layer   keys float16 [visual, width]; tokens, first frame, last frame, clusters and offset of
                        the index range [visual]
    index range         ids, tokens, first frame, last frame and offset of the slab [clusters]; checksum of
                        the slab, 16 bytes [clusters]; sums of raw keys [clusters, width] in the width of
                        statistics; frame int32 [tokens] and place int32 [axes, tokens] of every token;
                        16 bytes of checksum
    slab                K and V [tokens, 2, kv_heads, head_dim]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from lookout.past.memory.errors import DamagedMemoryError, HistoryError
from lookout.past.memory.history import LayerIndex, Snapshot, in_half
from lookout.past.memory.packing import checksum, ints, pack, unpack_file
from lookout.past.memory.types import Ints, KVShape, Prefix, raw

CATALOGUE, SLABS, WINDOW = "catalogue", "slabs", "window"
"""File names in the ranges of a memory that still grows."""
PREFIX = "prefix.bin"
"""Name of the file with the prefix. All memories of a model share the prefix; its checksum identifies it."""

FORMAT = 2
"""Version of the format; increase it when earlier releases could not read the files that a head refers to."""
CHECKSUM_BYTES = 16
_ROW_BYTES = 5 * 8 + CHECKSUM_BYTES


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [offset, offset + length) of a memory's file. `checksum` is empty if it is not known yet."""

    file: str
    offset: int
    length: int
    checksum: bytes = b""

    def checked(self, data: bytes, where: str) -> bytes:
        """Return the data after comparing it with the range's length and checksum.

        Args:
            data: The bytes that were read.
            where: Where they come from; the error message begins with it.

        Raises:
            DamagedMemoryError: the length or the checksum does not match.
        """
        if len(data) != self.length or (self.checksum and checksum(data) != self.checksum):
            raise DamagedMemoryError(
                f"{where}: {self.file}: bytes {self.offset} to {self.offset + self.length} are damaged: "
                "their length or checksum does not match"
            )
        return data


class Files(Protocol):
    """Reads ranges of a memory's files."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`.

        Raises:
            HistoryError: a range is not available here.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WindowBlock:
    """A block that answers read whole, without its KV.

    Attributes:
        first_frame: number of the block's first frame in the memory.
        frames: number of the block's frames.
        frame: int64 [rows], number of each row's frame in the memory.
        places: int64 [axes, rows], position of each row inside its frame's slot.
        data: byte range of each layer's KV.
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
    """The part of a memory that readers read first.

    Attributes:
        about: facts about the memory, as JSON.
        version: increases with every change of the memory.
        sealed: whether the memory accepts no more blocks.
        shape: shape of one token's KV.
        prefix: byte range of the system prefix.
        times_us: int64 [frames], stream time of every frame.
        present: bool [frames], whether the memory holds the frame's KV, or the frame never had a token.
        tokens: number of tokens of all frames, including frames whose KV is no longer held.
        step: int64 [axes], `BornBlock.step` of the newest block.
        extent: int64 [axes], `BornBlock.extent` of the newest block.
        catalogue: name of the file with scenes and index ranges.
        slabs: name of the file with slabs.
        scenes: byte range of each layer's scenes, and their number of visual clusters.
        window: the blocks that answers read whole, oldest first.
        forgotten: ranges of stream time that were erased.
    """

    about: dict[str, Any]
    version: int
    sealed: bool
    shape: KVShape
    prefix: ByteRange
    times_us: Ints
    present: np.ndarray
    tokens: int
    step: Ints
    extent: Ints
    catalogue: str
    slabs: str
    scenes: tuple[tuple[ByteRange, int], ...]
    window: tuple[WindowBlock, ...]
    forgotten: tuple[tuple[int, int], ...] = ()

    def packed(self) -> bytes:
        """Pack the head into one record."""
        arrays: dict[str, Any] = {
            "times": self.times_us,
            "present": self.present,
            "step": self.step,
            "extent": self.extent,
        }
        for number, block in enumerate(self.window):
            arrays[f"window{number}.frame"], arrays[f"window{number}.places"] = block.frame, block.places
        header = {
            "format": FORMAT,
            "about": self.about,
            "version": self.version,
            "sealed": self.sealed,
            "shape": {**asdict(self.shape), "dtype": str(self.shape.dtype).removeprefix("torch.")},
            "prefix": _range_facts(self.prefix),
            "tokens": self.tokens,
            "forgotten": self.forgotten,
            "catalogue": self.catalogue,
            "slabs": self.slabs,
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
    def unpacked(cls, data: bytes, where: str) -> Head:
        """Unpack a head from its record.

        Raises:
            DamagedMemoryError: the record is damaged.
            HistoryError: the head has another format.
        """
        record = unpack_file(data, where)
        header, arrays = record.header, record.arrays
        if (written := header.get("format", 1)) != FORMAT:
            raise HistoryError(
                f"{where}: the chapter has format {written}, but this release reads only format {FORMAT}; "
                "remove the chapter, and compute it again with `lookout memory rebuild`"
            )
        shape = {**header["shape"], "dtype": getattr(torch, header["shape"]["dtype"])}
        return cls(
            about=header["about"],
            version=header["version"],
            sealed=header["sealed"],
            shape=KVShape(**shape),
            prefix=_range_of(header["prefix"]),
            times_us=ints(arrays["times"]),
            present=arrays["present"].numpy(),
            tokens=header["tokens"],
            step=ints(arrays["step"]),
            extent=ints(arrays["extent"]),
            catalogue=header["catalogue"],
            slabs=header["slabs"],
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

    @classmethod
    def of(cls, snapshot: Snapshot, shape: KVShape, about: Mapping[str, Any], **places: Any) -> Head:
        """Return the head of a snapshot. `places` has the fields that the snapshot does not determine:
        `sealed` and the places of the files' parts."""
        prefix = packed_prefix(snapshot.prefix)
        return cls(
            about=dict(about),
            version=snapshot.version,
            shape=shape,
            prefix=ByteRange(PREFIX, 0, len(prefix), checksum(prefix)),
            times_us=snapshot.times_us,
            present=snapshot.covered_frames(),
            tokens=len(snapshot.token_frame),
            step=snapshot.step,
            extent=snapshot.extent,
            forgotten=snapshot.forgotten,
            **places,
        )


def packed_prefix(prefix: Prefix) -> bytes:
    """Pack a prefix into one record."""
    return pack({}, {"positions": prefix.positions, "keys": prefix.keys, "values": prefix.values})


@lru_cache(maxsize=16)
def unpacked_prefix(data: bytes) -> Prefix:
    """Unpack a prefix from its record. Results are cached, because all memories of a model share the prefix.

    Raises:
        DamagedMemoryError: the record is damaged.
    """
    arrays = unpack_file(data, PREFIX).arrays
    return Prefix(ints(arrays["positions"]), arrays["keys"], arrays["values"])


def _range_facts(place: ByteRange) -> list[Any]:
    return [place.file, place.offset, place.length, place.checksum.hex()]


def _range_of(facts: Sequence[Any]) -> ByteRange:
    return ByteRange(facts[0], facts[1], facts[2], bytes.fromhex(facts[3]))


@dataclass(frozen=True, slots=True, eq=False)
class LayerScenes:
    """The visual clusters of one layer, as the first stage of retrieval compares them.

    Attributes:
        keys: [visual, width], mean raw key of each visual cluster, rounded to half precision.
        counts: int64 [visual], number of tokens of each visual cluster.
        frames: int64 [2, visual], first and last frame of each visual cluster.
        clusters: int64 [visual], number of semantic clusters of each visual cluster.
        offsets: int64 [visual], first byte of each visual cluster's index range in the catalogue.
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

    @classmethod
    def of(cls, ranges: Sequence[IndexRange], offsets: Ints, shape: KVShape) -> LayerScenes:
        """Return the scenes of visual clusters whose index ranges begin at `offsets`."""
        count = len(ranges)
        keys = torch.zeros(count, shape.width, dtype=shape.wide)
        frames = np.zeros((2, count), np.int64)
        counts = np.array([part.counts.sum() for part in ranges], np.int64)
        for place, part in enumerate(ranges):
            if len(part.ids):
                keys[place] = in_half(part.sums.sum(0) / int(counts[place]))
                frames[:, place] = part.first.min(), part.last.max()
        clusters = np.array([len(part.ids) for part in ranges], np.int64)
        return cls(keys, torch.from_numpy(counts), frames, clusters, offsets)

    def packed(self) -> bytes:
        """Pack the scenes into bytes."""
        numbers = np.stack([self.counts.numpy(), *self.frames, self.clusters, self.offsets])
        return bytes(raw(self.keys.half())) + numbers.astype(np.int64).tobytes()

    def index_range(self, head: Head, visual: int) -> ByteRange:
        """Return the byte range of a visual cluster's index range."""
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
        sums: [clusters, width], sums of raw keys.
        slabs: where the KV of each cluster lies.
        token_frame: int64 [tokens], the frame of every token, cluster after cluster.
        token_place: int64 [axes, tokens].
    """

    ids: Ints
    counts: Ints
    first: Ints
    last: Ints
    sums: torch.Tensor
    slabs: tuple[ByteRange, ...]
    token_frame: Ints
    token_place: Ints

    @property
    def keys(self) -> torch.Tensor:
        """Mean raw keys [clusters, width]."""
        return self.sums / torch.from_numpy(self.counts)[:, None]

    @classmethod
    def joined(cls, parts: Sequence[IndexRange], shape: KVShape) -> IndexRange:
        """Concatenate several index ranges."""
        none = np.zeros(0, np.int64)
        names = ("ids", "counts", "first", "last", "token_frame")
        columns = {name: np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in names}
        return cls(
            **columns,
            sums=torch.cat([torch.zeros(0, shape.width, dtype=shape.wide), *(part.sums for part in parts)]),
            slabs=tuple(slab for part in parts for slab in part.slabs),
            token_place=np.concatenate(
                [np.zeros((shape.axes, 0), np.int64), *(part.token_place for part in parts)], 1
            ),
        )

    def cluster(self, row: int) -> IndexRange:
        """Return an index range that contains only one of the clusters."""
        place, begin = slice(row, row + 1), int(self.counts[:row].sum())
        tokens = slice(begin, begin + int(self.counts[row]))
        return replace(
            self,
            ids=self.ids[place],
            counts=self.counts[place],
            first=self.first[place],
            last=self.last[place],
            sums=self.sums[place],
            slabs=self.slabs[place],
            token_frame=self.token_frame[tokens],
            token_place=self.token_place[:, tokens],
        )

    def packed(self) -> bytes:
        """Pack the range into bytes."""
        offsets = np.array([slab.offset for slab in self.slabs], np.int64)
        numbers = np.stack([self.ids, self.counts, self.first, self.last, offsets])
        body = b"".join(
            (
                numbers.astype(np.int64).tobytes(),
                *(slab.checksum or bytes(CHECKSUM_BYTES) for slab in self.slabs),
                bytes(raw(self.sums)),
                self.token_frame.astype(np.int32).tobytes(),
                self.token_place.astype(np.int32).tobytes(),
            )
        )
        return body + checksum(body)

    @classmethod
    def unpacked(cls, data: bytes, clusters: int, tokens: int, head: Head) -> IndexRange:
        """Unpack the bytes of an index range with this many clusters and tokens.

        Raises:
            DamagedMemoryError: the checksum does not match.
        """
        shape = head.shape
        if checksum(data[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
            raise DamagedMemoryError(
                f"{head.catalogue}: an index range is damaged: the checksum does not match"
            )
        numbers = np.frombuffer(data, np.int64, 5 * clusters).reshape(5, clusters).copy()
        place = numbers.nbytes
        sums = [
            data[place + CHECKSUM_BYTES * row : place + CHECKSUM_BYTES * (row + 1)] for row in range(clusters)
        ]
        place += CHECKSUM_BYTES * clusters
        kind = np.float64 if shape.wide == torch.float64 else np.float32
        totals = np.frombuffer(data, kind, clusters * shape.width, place).reshape(clusters, shape.width)
        place += totals.nbytes
        frame = np.frombuffer(data, np.int32, tokens, place)
        places = np.frombuffer(data, np.int32, tokens * shape.axes, place + frame.nbytes)
        return cls(
            ids=numbers[0],
            counts=numbers[1],
            first=numbers[2],
            last=numbers[3],
            sums=torch.from_numpy(totals.copy()),
            slabs=tuple(
                ByteRange(
                    head.slabs, offset, count * shape.token_bytes, sums[row].rstrip(b"\0") and sums[row]
                )
                for row, (count, offset) in enumerate(numbers[[1, 4]].T.tolist())
            ),
            token_frame=frame.astype(np.int64),
            token_place=places.reshape(shape.axes, tokens).astype(np.int64),
        )


def index_range(snapshot: Snapshot, layer: int, visual: int, slabs: Sequence[ByteRange]) -> IndexRange:
    """Return the index range of a visual cluster, given the byte ranges of its clusters' slabs."""
    index = snapshot.layers[layer]
    rows, _ = index.table.rows(np.array([visual], np.int64))
    clusters, table = index.clusters(rows), index.table
    tokens = np.concatenate([np.zeros(0, np.int64), *(cluster.slab.tokens for cluster in clusters)])
    frame, place = snapshot.lookup(tokens)
    return IndexRange(
        ids=table.ids[rows],
        counts=table.counts[rows],
        first=table.frames[0, rows],
        last=table.frames[2, rows],
        sums=torch.stack([cluster.key for cluster in clusters]) if clusters else table.keys[:0],
        slabs=tuple(slabs),
        token_frame=frame,
        token_place=place,
    )


@dataclass(eq=False)
class Catalogue:
    """The catalogue of a snapshot. Its records are built on demand.

    Attributes:
        snapshot: the snapshot of the memory.
        shape: shape of its KV.
        about: facts about the memory, as in `Head.about`.
    """

    snapshot: Snapshot
    shape: KVShape
    about: Mapping[str, Any]
    starts: Ints = field(init=False)
    lengths: Ints = field(init=False)

    def __post_init__(self) -> None:
        layers, shape = self.snapshot.layers, self.shape
        sizes = [scenes_bytes(len(index.counts), shape) for index in layers]
        # Layer and visual cluster of each record; -1: the layer's scenes.
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
        # Slabs are ordered by layer, then by cluster.
        tokens = np.concatenate([np.zeros(0, np.int64), *(index.table.counts for index in layers)])
        self.slab_starts = (np.cumsum(tokens) - tokens) * shape.token_bytes
        self.slab_layers = np.cumsum([0, *(len(index.table.ids) for index in layers)])

    def record(self, number: int) -> bytes:
        """Build one record of the catalogue's file."""
        layer, visual = self.homes[number]
        return self._scenes(layer) if visual < 0 else self._range(layer, visual)

    @cached_property
    def head(self) -> Head:
        """The head of the memory."""
        snapshot, shape = self.snapshot, self.shape
        scenes = []
        for layer, index in enumerate(snapshot.layers):
            place = ByteRange(
                CATALOGUE, int(self.starts[layer]), int(self.lengths[layer]), checksum(self._scenes(layer))
            )
            scenes.append((place, len(index.counts)))
        window, offset = [], 0
        for entry in snapshot.window:
            size = entry.block.rows * shape.token_bytes
            data = tuple(ByteRange(WINDOW, offset + layer * size, size) for layer in range(shape.layers))
            offset += shape.layers * size
            frame = entry.block.frame + entry.first_frame
            block = WindowBlock(entry.first_frame, entry.block.frames, frame, entry.block.places, data)
            window.append(block)
        return Head.of(
            snapshot,
            shape,
            self.about,
            sealed=False,
            catalogue=CATALOGUE,
            slabs=SLABS,
            scenes=tuple(scenes),
            window=tuple(window),
        )

    def _scenes(self, layer: int) -> bytes:
        index: LayerIndex = self.snapshot.layers[layer]
        begun = len(self.snapshot.layers) + sum(len(other.counts) for other in self.snapshot.layers[:layer])
        clusters, offsets = np.diff(index.table.starts), self.starts[begun : begun + len(index.counts)]
        return LayerScenes(index.keys, index.counts, index.frames, clusters, offsets).packed()

    def _range(self, layer: int, visual: int) -> bytes:
        table = self.snapshot.layers[layer].table
        rows, _ = table.rows(np.array([visual], np.int64))
        starts = self.slab_starts[self.slab_layers[layer] + rows].tolist()
        sizes = (table.counts[rows] * self.shape.token_bytes).tolist()
        slabs = [ByteRange(SLABS, start, size) for start, size in zip(starts, sizes, strict=True)]
        return index_range(self.snapshot, layer, visual, slabs).packed()


@dataclass(frozen=True, eq=False)
class SnapshotFiles:
    """Reads the ranges of a memory that still grows, by building them from a snapshot."""

    catalogue: Catalogue

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of whole records: a layer's scenes, an index range, a slab, the prefix, or one
        layer of a window's block.

        Raises:
            HistoryError: a range is not a whole record.
        """
        return [self._record_at(place) for place in ranges]

    def _record_at(self, place: ByteRange) -> bytes:
        catalogue = self.catalogue
        if place.file == CATALOGUE:
            number = _number(catalogue.starts, place.offset)
            if number is not None and catalogue.lengths[number] == place.length:
                return catalogue.record(number)
        elif place.file == SLABS:
            row = _number(catalogue.slab_starts, place.offset)
            if row is not None:
                layer = int(np.searchsorted(catalogue.slab_layers, row, side="right")) - 1
                index = catalogue.snapshot.layers[layer]
                (cluster,) = index.clusters(np.array([row - catalogue.slab_layers[layer]], np.int64))
                if cluster.slab.bytes == place.length:
                    return bytes(raw(cluster.slab.data))
        elif place.file == PREFIX and place.length == catalogue.head.prefix.length:
            return packed_prefix(catalogue.snapshot.prefix)
        elif place.file == WINDOW:
            for entry, block in zip(catalogue.snapshot.window, catalogue.head.window, strict=True):
                if place.length and block.data[0].offset <= place.offset <= block.data[-1].offset:
                    layer = (place.offset - block.data[0].offset) // place.length
                    if block.data[layer] == place:
                        keys, values = entry.block.keys[layer], entry.block.values[layer]
                        return bytes(raw(torch.stack([keys.transpose(0, 1), values.transpose(0, 1)], 1)))
        if not place.length:
            return b""
        raise HistoryError(
            f"{place.file}: bytes {place.offset} to {place.offset + place.length} are not a record of "
            f"version {catalogue.snapshot.version} of this memory"
        )


def _number(starts: Ints, offset: int) -> int | None:
    """Return the number of the record that begins at an offset; None if none does. Empty records share the
    offset of the next record, so the last one is returned."""
    number = int(np.searchsorted(starts, offset, side="right")) - 1
    return number if number >= 0 and starts[number] == offset else None
