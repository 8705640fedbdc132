"""A camera's memory: KV in clusters, to which blocks are added one by one, and which is read through
snapshots (Mosaic)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch

from lookout.past.memory.clusters import (
    Cluster,
    ClusterPartition,
    Members,
    Upkeep,
    assign,
    construct,
    settle,
    without,
)
from lookout.past.memory.errors import HistoryError
from lookout.past.memory.frames import FrameNumbers
from lookout.past.memory.slabs import Residency
from lookout.past.memory.spans import Span
from lookout.past.memory.statistics import unit, unit_variance
from lookout.past.memory.table import ClusterTable
from lookout.past.memory.types import BornBlock, Ints, Keep, KVShape, MaintenanceCount, MemorySettings, Prefix
from lookout.past.memory.visual import VisualLevel


@dataclass(frozen=True, slots=True, eq=False)
class OpenBlock:
    """A block that answers read whole, because it is still in the window or the first clusters do not exist
    yet. `first_frame` and `first_token` are the numbers of its first frame and token in the memory."""

    block: BornBlock
    first_frame: int
    first_token: int


@dataclass(frozen=True, slots=True, eq=False)
class _Stacked:
    """Stacked arrays of a layer's partitions, which retrieval reads; see `LayerIndex`."""

    table: ClusterTable
    keys: torch.Tensor
    counts: torch.Tensor
    frames: Ints

    @classmethod
    def empty(cls, width: int, axes: int, dtype: torch.dtype) -> _Stacked:
        """Return the arrays of a layer without clusters."""
        none = torch.zeros(0, width, dtype=dtype)
        counts = torch.zeros(0, dtype=torch.long)
        return cls(ClusterTable.empty(width, axes, dtype), none, counts, np.zeros((2, 0), np.int64))

    def changed(self, partitions: Mapping[int, ClusterPartition | None], total: int) -> _Stacked:
        """Return a copy with some partitions replaced or added; only their rows are computed. `total` is the
        number of partitions after the change."""
        growth = total - len(self.counts)
        keys = torch.cat([self.keys, self.keys.new_zeros(growth, self.keys.shape[1])])
        counts = torch.cat([self.counts, self.counts.new_zeros(growth)])
        frames = np.concatenate([self.frames, np.zeros((2, growth), np.int64)], 1)
        for place, part in partitions.items():
            if part is None:
                keys[place], counts[place], frames[:, place] = 0, 0, 0
                continue
            key, count = part.totals
            keys[place], counts[place] = in_half(key / count), count
            frames[:, place] = part.frames[0].min(), part.frames[2].max()
        return _Stacked(self.table.changed(partitions, total), keys, counts, frames)


_Partitions = Mapping[int, ClusterPartition | None]


class LayerIndex:
    """One layer of a memory: the clusters, and the arrays that the two stages of retrieval read. Immutable.

    The arrays are computed when they are first read, because most blocks are added without a question about
    them. They depend only on the partitions.

    Attributes:
        partitions: the semantic clusters of each visual cluster; None: no token of the visual cluster is
            left.
    """

    __slots__ = ("_pending", "_stacked", "partitions")

    def __init__(
        self,
        partitions: tuple[ClusterPartition | None, ...],
        stacked: _Stacked,
        pending: _Partitions | None = None,
    ) -> None:
        """Create the index. `stacked` does not include the changed partitions in `pending` yet."""
        self.partitions = partitions
        self._stacked, self._pending = stacked, pending or {}

    @classmethod
    def empty(cls, width: int, axes: int, dtype: torch.dtype) -> LayerIndex:
        """Return the index of a layer without clusters."""
        return cls((), _Stacked.empty(width, axes, dtype))

    @property
    def table(self) -> ClusterTable:
        """All clusters of the partitions."""
        return self._read().table

    @property
    def keys(self) -> torch.Tensor:
        """Mean raw key of each visual cluster, [visual, width], rounded to half precision, in which other
        processes read it."""
        return self._read().keys

    @property
    def counts(self) -> torch.Tensor:
        """Number of tokens of each visual cluster, int64 [visual]."""
        return self._read().counts

    @property
    def frames(self) -> Ints:
        """First and last frame number of each visual cluster, int64 [2, visual]."""
        return self._read().frames

    @property
    def tokens(self) -> int:
        """Number of tokens of all clusters."""
        return sum(part.tokens for part in self.partitions if part is not None)

    def clusters(self, rows: Ints) -> tuple[Cluster, ...]:
        """Return the clusters in these rows of the table, in the order of `rows`."""
        places = np.searchsorted(self.table.starts, rows, side="right") - 1
        numbers = (rows - self.table.starts[places]).tolist()
        parts = [self.partitions[place] for place in places.tolist()]
        return tuple(p.clusters[number] for p, number in zip(parts, numbers, strict=True) if p is not None)

    def changed(self, partitions: Mapping[int, ClusterPartition | None]) -> LayerIndex:
        """Return this index with some partitions replaced or added."""
        if not partitions:
            return self
        total = max(len(self.partitions), max(partitions) + 1)
        parts = [*self.partitions, *[None] * (total - len(self.partitions))]
        for place, part in partitions.items():
            parts[place] = part
        with _READING:
            return LayerIndex(tuple(parts), self._stacked, {**self._pending, **partitions})

    def _read(self) -> _Stacked:
        with _READING:
            if self._pending:
                self._stacked = self._stacked.changed(self._pending, len(self.partitions))
                self._pending = {}
            return self._stacked


_READING = threading.Lock()
"""Lock that is held while stacked arrays are updated."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a memory that an answer reads; it does not change while the memory grows.

    Attributes:
        layers: the index of every layer.
        window: the blocks that are read whole, oldest first.
        prefix: the system prefix.
        times_us: int64 [frames], stream time of every frame that the memory has numbered.
        token_frame: int64 [tokens], frame number of each token.
        token_place: int64 [axes, tokens], position of each token inside its frame's slot.
        step: int64 [axes], `BornBlock.step` of the newest block.
        extent: int64 [axes], `BornBlock.extent` of the newest block.
        version: increases with every change of the memory.
        covered_from_us: stream time of the oldest frame whose KV is held; None: no KV is held.
        held_from: number of the oldest frame that `Keep` has not dropped.
        forgotten: time ranges that were erased.
    """

    layers: tuple[LayerIndex, ...]
    window: tuple[OpenBlock, ...]
    prefix: Prefix
    times_us: Ints
    token_frame: Ints
    token_place: Ints
    step: Ints
    extent: Ints
    version: int
    covered_from_us: int | None
    held_from: int = 0
    forgotten: tuple[tuple[int, int], ...] = ()

    def lookup(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Return frames int64 [n] and places int64 [axes, n] of tokens, given their numbers."""
        return self.token_frame[tokens], self.token_place[:, tokens]

    def choice(self, since_us: int | None, until_us: int | None) -> Span:
        """Choose the frames with since <= time < until."""
        return Span.of_times(self.times_us, since_us, until_us)

    @property
    def clustered(self) -> bool:
        """Whether the memory has clusters, in addition to the blocks that answers read whole."""
        return any(index.tokens for index in self.layers)

    def covered_frames(self) -> np.ndarray:
        """Return which frames are complete, bool [frames]: those whose KV is held, or that never had a
        token."""
        frames = len(self.times_us)
        covered: np.ndarray = np.bincount(self.token_frame, minlength=frames) == 0
        covered[: self.held_from] = False
        for begin_us, end_us in self.forgotten:
            covered &= (self.times_us < begin_us) | (self.times_us >= end_us)
        covered[self.held_frames()] = True
        return covered

    def held_frames(self) -> Ints:
        """Return the frames whose KV is held, ascending."""
        parts = [part for part in self.layers[0].partitions if part is not None]
        tokens = [cluster.slab.tokens for part in parts for cluster in part.clusters]
        frames = [np.unique(entry.block.frame) + entry.first_frame for entry in self.window]
        frames += [self.lookup(np.concatenate(tokens))[0]] if tokens else []
        out: Ints = np.unique(np.concatenate([np.zeros(0, np.int64), *frames]))
        return out


@dataclass(frozen=True, slots=True)
class IndexSize:
    """Sizes of an index and of the KV that it indexes.

    Attributes:
        index_bytes: bytes that a question needs on the device, for representatives and counters.
        upkeep_bytes: additional bytes that the owner needs for maintenance, for sums of unit keys.
        kv_bytes: bytes of the indexed KV.
        clusters: number of semantic clusters in all layers.
        tokens: number of tokens in all layers.
    """

    index_bytes: int
    upkeep_bytes: int
    kv_bytes: int
    clusters: int
    tokens: int

    @property
    def share(self) -> float:
        """Index bytes per byte of KV."""
        return self.index_bytes / max(1, self.kv_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class BlockTail:
    """Facts about a sealed memory's newest block: the distance to the next frame's slot, and the positions
    that a frame spans (`BornBlock.step` and `extent`)."""

    step: Ints
    extent: Ints


_CHANGEABLE = (
    "visual",
    "scales",
    "open",
    "layers",
    "frame_visual",
    "count",
    "version",
    "forgotten",
    "held_from",
    "wide",
    "_ids",
    "tail",
)
"""Attributes that a change may alter, besides the table and the residency."""


class CameraMemory:
    """The memory of one camera's epoch. One owner adds blocks; any number of readers take snapshots.

    The state depends only on the settings and the sequence of added blocks and reported fetches, so the same
    records give the same memory, bit for bit.
    """

    def __init__(
        self,
        shape: KVShape,
        prefix: Prefix,
        settings: MemorySettings | None = None,
        *,
        bias: torch.Tensor | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Create an empty memory.

        Args:
            shape: Shape of one token's KV.
            prefix: The system prefix.
            settings: How the memory is built; None: the defaults.
            bias: [layers, width], bias of the key projections, which is subtracted from keys before they are
                compared; None: zero.
            keep: Limits of the KV to keep; None: no limits.
        """
        self.shape, self.prefix = shape, prefix
        self.settings, self.keep = settings or MemorySettings(), keep or Keep()
        none = torch.zeros(shape.layers, shape.width, dtype=shape.wide)
        self.bias = none if bias is None else bias.to(shape.wide)
        self.residency = Residency(self.settings.resident_bytes)
        self.table = FrameNumbers(shape.axes)
        self.visual: VisualLevel | None = None
        self.scales: list[float] = [0.0] * shape.layers
        self.open: list[OpenBlock] = []
        nothing = LayerIndex.empty(shape.width, shape.axes, shape.wide)
        self.layers: list[LayerIndex] = [nothing] * shape.layers
        self.frame_visual: dict[int, int] = {}
        self.count = MaintenanceCount()
        self.version = 0
        self.forgotten: list[tuple[int, int]] = []
        self.held_from = 0
        self.wide: dict[int, tuple[int, int]] = {}
        self._ids = 0
        self.tail: BlockTail | None = None
        self._lock = threading.RLock()
        self._changing = False

    # Atomic changes.

    @contextmanager
    def change(self) -> Iterator[None]:
        """Make the changes inside the context atomic: an exception undoes them all."""
        with self._lock:
            if self._changing:
                yield
                return
            # Blocks, clusters and indexes are immutable, so shallow copies of what holds them are enough.
            before = {name: copy(getattr(self, name)) for name in _CHANGEABLE}
            table, residency = self.table.mark(), self.residency.order()
            self._changing = True
            try:
                yield
            except BaseException:
                vars(self).update(before)
                self.table.cut(table)
                self.residency.restore(residency)
                raise
            finally:
                self._changing = False

    # Growing.

    def add(self, block: BornBlock) -> None:
        """Add a closed block. Answers read it whole while it is in the window, then through clusters. An
        exception leaves the memory unchanged.

        Raises:
            HistoryError: the block does not fit the memory.
        """
        with self.change():
            self._check(block)
            frame, token = self.table.add(block)
            self.open.append(OpenBlock(block, frame, token))
            if self.visual is None:
                older = self.open[: -self.settings.window]
                if sum(entry.block.frames for entry in older) >= self.settings.construct:
                    self._construct(len(older))
            else:
                while len(self.open) > self.settings.window:
                    self._take_in([self.open.pop(0)])
            self._expire()
            self._split_wide()
            self.version += 1

    def seal(self) -> None:
        """Seal the memory: assign the blocks in the window to clusters, and carry out all deferred splits. A
        sealed memory accepts no more blocks, but frames can still be erased from it.

        Raises:
            HistoryError: the memory is empty.
        """
        with self.change():
            if self.tail is not None:
                return
            if not self.open or not self.table.frames:
                raise HistoryError("this memory is empty and cannot be sealed")
            newest = self.open[-1].block
            self.tail = BlockTail(newest.step, newest.extent)
            if self.visual is None:
                self._construct(len(self.open))
            else:
                leaving, self.open = self.open, []
                self._take_in(leaving)
            for number in range(self.shape.layers):
                self._settle_layer(
                    number, {cluster.id for cluster in self.clusters(number) if cluster.marked}
                )
            self.note_wide()
            self.version += 1

    @property
    def sealed(self) -> bool:
        """Whether the memory accepts no more blocks."""
        return self.tail is not None

    def settle(self, fetched: Mapping[int, Iterable[int]]) -> None:
        """Carry out the deferred splits of clusters that an answer fetched, and which are therefore on the
        device. `fetched` has their ids by layer."""
        with self.change():
            for number, ids in sorted(fetched.items()):
                self._settle_layer(number, set(ids))
            self._split_wide()
            self.version += 1

    def _settle_layer(self, number: int, ids: set[int]) -> None:
        index, upkeep = self.layers[number], self._upkeep(number)
        changed: dict[int, ClusterPartition | None] = {}
        rows = np.flatnonzero(np.isin(index.table.ids, list(ids)))
        for place in np.unique(np.searchsorted(index.table.starts, rows, side="right") - 1).tolist():
            partition = index.partitions[place]
            if partition is None:
                continue
            for cluster in partition.clusters:
                if cluster.id in ids:
                    self.residency.touch(cluster.id, cluster.slab.bytes)
            settled = settle(partition, ids, upkeep)
            if settled is not partition:
                changed[place] = settled
        self.layers[number] = index.changed(changed)

    def note_wide(self) -> None:
        """Find all marked clusters on the device. Call it after a memory was opened or a range was erased."""
        self.wide = {}
        for number, index in enumerate(self.layers):
            self._watch(number, enumerate(index.partitions))

    def _watch(self, number: int, partitions: Iterable[tuple[int, ClusterPartition | None]]) -> None:
        """Remember the marked clusters of a layer that are on the device."""
        for place, part in partitions:
            for cluster in part.clusters if part is not None else ():
                if cluster.marked and cluster.id in self.residency:
                    self.wide[cluster.id] = (number, place)

    def _split_wide(self) -> None:
        """Split the marked clusters that have come to rest, or have just left the device."""
        due: dict[tuple[int, int], set[int]] = {}
        for number, (layer, place) in sorted(self.wide.items()):
            part = self.layers[layer].partitions[place]
            marked = [c for c in part.clusters if c.id == number and c.marked] if part is not None else []
            resting = bool(marked) and marked[0].last + self.settings.rest < self.table.frames
            if not marked or resting or number not in self.residency:
                del self.wide[number]
            if marked and number not in self.wide:
                due.setdefault((layer, place), set()).add(number)
        for (layer, place), ids in due.items():
            part = self.layers[layer].partitions[place]
            # The parts of a split cluster may push another one off the device, which is then split as it
            # leaves.
            offloaded = {number for number in ids if number not in self.residency}
            for group, leaving in ((offloaded, True), (ids - offloaded, False)):
                if part is not None and group:
                    part = settle(part, group, replace(self._upkeep(layer), leaving=leaving))
            self.layers[layer] = self.layers[layer].changed({place: part})

    def _check(self, block: BornBlock) -> None:
        shape = self.shape
        expected = (shape.layers, shape.kv_heads, block.rows, shape.head_dim)
        where = f"{block.stream}: block {block.index}"
        if self.sealed:
            raise HistoryError(f"{where}: this memory is sealed, and takes in no more blocks")
        if tuple(block.keys.shape) != expected or tuple(block.values.shape) != expected:
            raise HistoryError(
                f"{where}: its KV has shape {tuple(block.keys.shape)}, but this memory needs {expected}"
            )
        if block.keys.dtype != shape.dtype:
            raise HistoryError(
                f"{where}: its KV has type {block.keys.dtype}, but this memory stores {shape.dtype}"
            )
        if block.places.shape != (shape.axes, block.rows):
            raise HistoryError(
                f"{where}: its places have shape {block.places.shape} instead of {(shape.axes, block.rows)}"
            )
        if self.open and self.open[-1].block.stream != block.stream:
            raise HistoryError(
                f"{where}: this memory belongs to stream {self.open[-1].block.stream}; each epoch has its "
                "own memory"
            )
        if self.table.frames and block.frames and block.times_us[0] <= self.table.times_us.all[-1]:
            raise HistoryError(f"{where}: its first frame is not later than the memory's last one")

    def _construct(self, count: int) -> None:
        """Build the first clusters from the oldest `count` open blocks."""
        leaving, self.open = self.open[:count], self.open[count:]
        embeddings = torch.cat([entry.block.embeddings for entry in leaving])
        self.visual, own = VisualLevel.construct(embeddings, self.settings)
        numbers = self._note(leaving, own)
        for number in range(self.shape.layers):
            members = self._members(leaving, number)
            partitions: dict[int, ClusterPartition | None] = {}
            for place in range(self.visual.clusters):
                rows = np.flatnonzero(own[np.searchsorted(numbers, members.frames)] == place)
                cluster = None
                if len(rows):
                    cluster = construct(members.take(rows), self._upkeep(number), self._seed(number, place))
                partitions[place] = cluster
            self.layers[number] = self.layers[number].changed(partitions)
            self.scales[number] = _mean_variance(partitions.values())

    def _take_in(self, leaving: list[OpenBlock]) -> None:
        """Assign the tokens of blocks that are leaving the window to clusters."""
        if self.visual is None or not sum(entry.block.frames for entry in leaving):
            return
        embeddings = torch.cat([entry.block.embeddings for entry in leaving])
        self.visual, own = self.visual.assigned(embeddings, self.settings)
        numbers = self._note(leaving, own)
        for number, index in enumerate(self.layers):
            members = self._members(leaving, number)
            upkeep = self._upkeep(number)
            changed: dict[int, ClusterPartition | None] = {}
            of_token = own[np.searchsorted(numbers, members.frames)]
            for place in np.unique(of_token).tolist():
                newcomers = members.take(np.flatnonzero(of_token == place))
                old = index.partitions[place] if place < len(index.partitions) else None
                if old is None:
                    changed[place] = construct(newcomers, upkeep, self._seed(number, place))
                else:
                    changed[place] = assign(old, newcomers, upkeep)
            self.layers[number] = index.changed(changed)
            self._watch(number, changed.items())

    def _note(self, leaving: Sequence[OpenBlock], own: Ints) -> Ints:
        """Store the visual cluster of each frame; return the frames' numbers, ascending."""
        numbers: Ints = np.concatenate(
            [np.arange(entry.first_frame, entry.first_frame + entry.block.frames) for entry in leaving]
        )
        self.frame_visual.update(zip(numbers.tolist(), own.tolist(), strict=True))
        return numbers

    def _members(self, leaving: Sequence[OpenBlock], layer: int) -> Members:
        keys = torch.cat([entry.block.keys[layer] for entry in leaving], 1)
        values = torch.cat([entry.block.values[layer] for entry in leaving], 1)
        data = torch.stack([keys.transpose(0, 1), values.transpose(0, 1)], 1).contiguous()
        tokens = np.concatenate(
            [np.arange(entry.first_token, entry.first_token + entry.block.rows) for entry in leaving]
        )
        frames, places = self.table.lookup(tokens)
        units = unit(data[:, 0].reshape(len(tokens), -1).to(self.bias.dtype) - self.bias[layer])
        return Members(units, data, tokens, frames, places)

    def _upkeep(self, layer: int) -> Upkeep:
        return Upkeep(
            settings=self.settings,
            residency=self.residency,
            bias=self.bias[layer],
            scale=self.scales[layer],
            lookup=self.table.lookup,
            next_id=self._next_id,
            count=self.count,
        )

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def _seed(self, layer: int, place: int) -> int:
        return self.settings.seed * 1_000_003 + layer * 8191 + place

    # Forgetting.

    def forget(self, begin_us: int, end_us: int) -> int:
        """Erase the frames with begin_us <= stream time < end_us: their KV, their embeddings, and their
        contributions to means. A block that is still in the window is erased as a whole.

        Returns:
            The number of frames erased.
        """
        with self.change():
            times = self.table.times_us.all
            leaving = (times >= begin_us) & (times < end_us)
            for entry in self.open:
                # A block in the window is erased as a whole.
                frames = slice(entry.first_frame, entry.first_frame + entry.block.frames)
                leaving[frames] = leaving[frames].any()
            self._drop(leaving)
            self.note_wide()
            # A block without frames has the number of the next frame, and must not be removed with that
            # frame.
            self.open = [
                entry for entry in self.open if not (entry.block.frames and leaving[entry.first_frame])
            ]
            for number in np.flatnonzero(leaving).tolist():
                self.frame_visual.pop(number, None)
            self._erase_embeddings(leaving)
            self.forgotten.append((begin_us, end_us))
            self.version += 1
            return int(leaving.sum())

    def _erase_embeddings(self, gone: np.ndarray) -> None:
        start = 0
        for place, embeddings in enumerate(self.table.embeddings):
            stop = start + embeddings.shape[0]
            part = torch.from_numpy(gone[start:stop])
            if bool(part.any()):
                self.table.embeddings[place] = torch.where(part[:, None], 0.0, embeddings)
            start = stop
        if self.visual is None or not self.table.embeddings:
            return
        # Remove the erased frames from the visual means, too.
        x = unit(torch.cat(self.table.embeddings))
        sums, counts = torch.zeros_like(self.visual.sums), torch.zeros_like(self.visual.counts)
        for frame, place in self.frame_visual.items():
            sums[place] += x[frame]
            counts[place] += 1
        self.visual = VisualLevel(sums, counts, self.visual.scale)

    def _drop(self, gone: np.ndarray) -> None:
        """Remove the KV of some frames from the clusters."""
        frame_of = self.table.token_frame.all

        def leaving(tokens: Ints) -> Ints:
            return gone[frame_of[tokens]]

        for number, index in enumerate(self.layers):
            upkeep = self._upkeep(number)
            changed: dict[int, ClusterPartition | None] = {}
            for place, part in enumerate(index.partitions):
                if part is not None and (remainder := without(part, leaving, upkeep)) is not part:
                    changed[place] = remainder
            self.layers[number] = index.changed(changed)
            self._watch(number, changed.items())

    def _expire(self) -> None:
        """Drop the oldest KV beyond the byte budget and the horizon. Frame times and embeddings stay."""
        times = self.table.times_us.all
        if not len(times):
            return
        oldest = self.held_from
        if self.keep.seconds is not None:
            horizon = int(times[-1] - self.keep.seconds * 1e6)
            oldest = int(np.searchsorted(times, horizon))
        if self.keep.bytes is not None and self.kv_bytes > self.keep.bytes:
            per_token = self.shape.layers * self.shape.token_bytes
            excess = self.kv_bytes - int(0.95 * self.keep.bytes)
            first = int(np.searchsorted(self.table.token_frame.all, self.held_from))
            last = min(first + -(-excess // per_token), self.table.tokens - 1)
            oldest = max(oldest, int(self.table.token_frame.all[last]))
        # Drop at least a twentieth of the frames at a time, because each time rewrites the clusters
        # concerned.
        enough = (oldest - self.held_from) * 20 >= len(times) - self.held_from
        if oldest > self.held_from and (enough or self.keep.bytes is not None):
            leaving = np.zeros(len(times), dtype=bool)
            leaving[:oldest] = True
            self._drop(leaving)
            self.held_from = oldest

    # Reading.

    def snapshot(self) -> Snapshot:
        """Return the current state for an answer to read.

        Raises:
            HistoryError: the memory has no block with frames yet.
        """
        with self._lock:
            newest, table = self.tail or (self.open[-1].block if self.open else None), self.table
            if newest is None or not table.frames:
                raise HistoryError("this memory is empty: close at least one block with frames first")
            return Snapshot(
                layers=tuple(self.layers),
                window=tuple(self.open),
                prefix=self.prefix,
                times_us=table.times_us.all,
                token_frame=table.token_frame.all,
                token_place=table.token_place.all,
                step=newest.step,
                extent=newest.extent,
                version=self.version,
                covered_from_us=self.covered_from_us,
                held_from=self.held_from,
                forgotten=tuple(self.forgotten),
            )

    @property
    def covered_from_us(self) -> int | None:
        """Stream time of the oldest frame whose KV is held; None: no KV is held."""
        table = self.layers[0].table
        firsts = [int(table.frames[0].min())] if len(table.ids) else []
        firsts += [entry.first_frame for entry in self.open if entry.block.frames]
        return int(self.table.times_us.all[min(firsts)]) if firsts else None

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV, including the window's."""
        clustered = sum(index.tokens for index in self.layers)
        return clustered * self.shape.token_bytes + sum(entry.block.kv_bytes for entry in self.open)

    def clusters(self, layer: int) -> list[Cluster]:
        """Return all clusters of a layer."""
        parts = self.layers[layer].partitions
        return [cluster for part in parts if part is not None for cluster in part.clusters]

    def size(self, shape: KVShape | None = None) -> IndexSize:
        """Return the sizes of the index and its KV, if tokens had `shape` (None: this memory's shape).

        For each semantic cluster, and for each visual cluster in each layer, the index has a mean key and a
        mean value in the KV's dtype, and 40 bytes of counters. Maintenance needs a unit mean per semantic
        cluster in the same dtype.
        """
        sizes = shape or self.shape
        row = sizes.width * sizes.dtype.itemsize
        clusters = sum(len(self.clusters(layer)) for layer in range(self.shape.layers))
        visual = sum(len(index.counts) for index in self.layers)
        tokens = sum(index.tokens for index in self.layers)
        index = (clusters + visual) * (2 * row + 40)
        return IndexSize(index, clusters * row, tokens * sizes.token_bytes, clusters, tokens)


def in_half(means: torch.Tensor) -> torch.Tensor:
    """Round means to half precision without changing their dtype. Other processes read them in half
    precision, and all processes must rank clusters in the same order."""
    limit = torch.finfo(torch.float16).max
    return means.clamp(-limit, limit).half().to(means.dtype)


def _mean_variance(partitions: Iterable[ClusterPartition | None]) -> float:
    present = [part for part in partitions if part is not None]
    if not present:
        return 0.0
    variance = torch.cat([unit_variance(part.units, part.counts) for part in present])
    counts = torch.cat([part.counts for part in present])
    return float((variance * counts).sum() / counts.sum())
