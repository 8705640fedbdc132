"""Reads a camera's chapters as one memory, wherever their bytes are.

Each chapter is a separate memory (`lookout.past.memory.catalogue`). The frames, clusters and windows of all
chapters are numbered consecutively, so that a question reads them as one memory. An answer does not depend on
where a chapter's bytes come from, because heads, scenes and index ranges alone determine what is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from lookout.past.memory.catalogue import (
    PREFIX,
    ByteRange,
    Files,
    Head,
    IndexRange,
    LayerScenes,
    WindowBlock,
    unpacked_prefix,
)
from lookout.past.memory.errors import HistoryError
from lookout.past.memory.retrieval import (
    Candidates,
    RetrievalSettings,
    budget_of,
    first_stage,
    rows_read,
    semantic_stage,
)
from lookout.past.memory.spans import FrameChoice, FrameMask
from lookout.past.memory.types import Ints, Prefix


class LostChapterError(HistoryError):
    """A chapter can no longer be read; `chapter` is its name."""

    def __init__(self, chapter: str, cause: str) -> None:
        super().__init__(f"chapter {chapter} cannot be read: {cause}")
        self.chapter = chapter


@dataclass(frozen=True, slots=True)
class Chapter:
    """One chapter of a camera's past: its name, its head, and its clock offset in microseconds, which is
    added to stream times to get wall times."""

    name: str
    head: Head
    origin_us: int = 0

    @property
    def key(self) -> str:
        """A string that identifies the chapter in its current version."""
        return f"{self.name}@{self.head.version}"

    def holds(self, begin_us: int, end_us: int) -> bool:
        """Whether the chapter has frames in a range of wall time (Unix microseconds) that were not erased.

        Frames without KV count, too, because their embeddings stay when KV expires.
        """
        begin, end = begin_us - self.origin_us, end_us - self.origin_us
        times = self.head.times_us
        times = times[(times >= begin) & (times < end)]
        for first, last in self.head.forgotten:
            times = times[(times < first) | (times >= last)]
        return bool(len(times))


ChapterRange = tuple[Chapter, ByteRange]
Fetch = Callable[[Sequence[ChapterRange]], list[bytes]]
"""Reads ranges of several chapters; raises LostChapterError if one cannot be read."""


def fetch_from(files: Mapping[str, Files]) -> Fetch:
    """Return a function that reads ranges from the files of chapters, given by chapter name."""

    def fetch(requests: Sequence[ChapterRange]) -> list[bytes]:
        out = [b""] * len(requests)
        for name in {chapter.name for chapter, _ in requests}:
            numbers = [number for number, (chapter, _) in enumerate(requests) if chapter.name == name]
            try:
                data = files[name].read([requests[number][1] for number in numbers])
                for number, part in zip(numbers, data, strict=True):
                    out[number] = requests[number][1].checked(part, name)
            except HistoryError as error:
                raise LostChapterError(name, str(error)) from error
        return out

    return fetch


@dataclass(slots=True)
class Traffic:
    """Counts the ranges that a question read.

    Attributes:
        fetched_bytes: bytes fetched.
        fetched: number of ranges fetched.
        calls: number of calls of the fetch function.
        present: number of ranges found in the cache.
    """

    fetched_bytes: int = 0
    fetched: int = 0
    calls: int = 0
    present: int = 0


class RangeCache:
    """Caches ranges of chapters within a byte budget; the least recently used are evicted first. Thread-safe.

    A range that is being fetched is not fetched a second time; other readers wait for the first fetch.
    """

    def __init__(self, fetch: Fetch, budget_bytes: int) -> None:
        self._fetch, self._budget = fetch, budget_bytes
        self._lock = threading.Lock()
        self._data: OrderedDict[tuple[str, str, int], bytes] = OrderedDict()
        self._coming: dict[tuple[str, str, int], Future[bytes]] = {}
        self._forgets = 0
        self.bytes = 0

    def get(
        self, requests: Sequence[ChapterRange], traffic: Traffic | None = None, fetch: Fetch | None = None
    ) -> list[bytes]:
        """Return the bytes of every range. Ranges that are not cached are fetched in one call.

        Args:
            requests: chapters and ranges.
            traffic: counts what was read.
            fetch: used instead of the cache's own: it decides where one question may read from.

        Raises:
            LostChapterError: a chapter cannot be read.
        """
        traffic = traffic or Traffic()
        waiting: dict[tuple[str, str, int], Future[bytes]] = {}
        ready: dict[tuple[str, str, int], bytes] = {}
        own: dict[tuple[str, str, int], ChapterRange] = {}
        keys = [_key(request) for request in requests]
        with self._lock:
            forgets = self._forgets
            for key, request in zip(keys, requests, strict=True):
                if key in ready or key in waiting:
                    continue
                if key in self._data:
                    self._data.move_to_end(key)
                    ready[key] = self._data[key]
                    traffic.present += 1
                    continue
                if key not in self._coming:
                    self._coming[key] = Future()
                    own[key] = request
                waiting[key] = self._coming[key]
        if own:
            self._read(own, waiting, fetch or self._fetch, forgets)
            traffic.calls += 1
            traffic.fetched += len(own)
            traffic.fetched_bytes += sum(request[1].length for request in own.values())
        ready |= {key: future.result() for key, future in waiting.items()}
        return [ready[key] for key in keys]

    def _read(
        self,
        own: Mapping[tuple[str, str, int], ChapterRange],
        waiting: Mapping[tuple[str, str, int], Future[bytes]],
        fetch: Fetch,
        forgets: int,
    ) -> None:
        try:
            parts = fetch(list(own.values()))
        except BaseException as error:
            with self._lock:
                for key in own:
                    self._coming.pop(key, None)
            for key in own:
                waiting[key].set_exception(error)
            raise
        with self._lock:
            # Do not cache ranges that were requested before a `forget`, because they may have been forgotten.
            is_valid = forgets == self._forgets
            for key, part in zip(own, parts, strict=True):
                self._coming.pop(key, None)
                if is_valid:
                    self._data[key] = part
                    self.bytes += len(part)
            while self.bytes > self._budget and self._data:
                self.bytes -= len(self._data.popitem(last=False)[1])
        for key, part in zip(own, parts, strict=True):
            waiting[key].set_result(part)

    def forget(self, chapters: Iterable[str]) -> None:
        """Drop every range of some chapters, in all their versions."""
        names = set(chapters)
        self._forget(lambda name: name in names)

    def forget_camera(self, camera: str) -> int:
        """Drop every range of a camera's chapters.

        Returns:
            The number of ranges dropped.
        """
        return self._forget(lambda name: name.rpartition("/")[0] == camera)

    def _forget(self, leaves: Callable[[str], bool]) -> int:
        with self._lock:
            self._forgets += 1
            keys = [key for key in self._data if leaves(key[0].rpartition("@")[0])]
            for key in keys:
                self.bytes -= len(self._data.pop(key))
        return len(keys)


def _key(request: ChapterRange) -> tuple[str, str, int]:
    """Return the cache key of a range. All chapters of a model share the prefix, so its key is its
    checksum."""
    chapter, place = request
    if place.file == PREFIX and place.checksum:
        return "", place.checksum.hex(), 0
    return chapter.key, place.file, place.offset


class LayerTensors(Protocol):
    """K or V of a block, layer by layer: [kv_heads, rows, head_dim] each."""

    def __getitem__(self, layer: int, /) -> torch.Tensor: ...


class WholeBlock(Protocol):
    """A block that an answer reads whole (as `BornBlock`)."""

    @property
    def frame(self) -> Ints: ...

    @property
    def places(self) -> Ints: ...

    @property
    def rows(self) -> int: ...

    @property
    def frames(self) -> int: ...

    @property
    def keys(self) -> LayerTensors: ...

    @property
    def values(self) -> LayerTensors: ...


class WindowEntry(Protocol):
    """A block of the window and its first frame's number (as `OpenBlock`)."""

    @property
    def block(self) -> WholeBlock: ...

    @property
    def first_frame(self) -> int: ...


class Readable(Protocol):
    """What an answer reads: a snapshot of a memory in this process, or a past of chapters."""

    @property
    def times_us(self) -> Ints: ...

    @property
    def prefix(self) -> Prefix: ...

    @property
    def window(self) -> Sequence[WindowEntry]: ...

    @property
    def step(self) -> Ints: ...

    @property
    def extent(self) -> Ints: ...

    @property
    def clustered(self) -> bool: ...

    @property
    def covered_from_us(self) -> int | None: ...

    def held_frames(self) -> Ints: ...

    def choice(self, since_us: int | None, until_us: int | None) -> FrameChoice: ...


@dataclass(frozen=True, slots=True, eq=False)
class JoinedScenes:
    """The visual clusters of one layer in all chapters (as `LayerScenes`), each with the index of its chapter
    and its number in the chapter."""

    keys: torch.Tensor
    counts: torch.Tensor
    frames: Ints
    chapter: Ints
    number: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What one layer of an answer reads.

    Attributes:
        slabs: slabs in temporal order.
        ids: ids of the slabs' clusters.
        frames: int64 [n], frame number of each row that is read.
        places: int64 [axes, n], position of each row inside its frame's slot.
        scored: number of clusters compared with the query.
        rows: which rows of all slabs are read, bool [rows]; None: all rows.
    """

    slabs: tuple[ChapterRange, ...]
    ids: tuple[int, ...]
    frames: Ints
    places: Ints
    scored: int
    rows: np.ndarray | None = None


class Past:
    """The chapters of one camera, oldest first, read as one memory."""

    def __init__(
        self,
        chapters: Sequence[Chapter],
        ranges: RangeCache,
        settings: RetrievalSettings | None = None,
        *,
        fetch: Fetch | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Read the scenes of all chapters that have a frame with since <= time < until. `fetch` is used
        instead of the cache's own.

        Raises:
            HistoryError: no chapter has such a frame, the chapters are of different models, or the settings
                ask for representatives.
            LostChapterError: a chapter cannot be read.
        """
        self.settings = settings or RetrievalSettings()
        if self.settings.representatives:
            raise HistoryError("retrieval settings: chapters are read without representatives")
        self.ranges, self._fetch, self.traffic = ranges, fetch, traffic or Traffic()
        self.chapters = [chapter for chapter in chapters if _overlaps(chapter, since_us, until_us)]
        if not self.chapters:
            raise HistoryError("nothing is remembered of that time")
        newest = self.chapters[-1].head
        if any(chapter.head.shape != newest.shape for chapter in self.chapters):
            raise HistoryError(
                "these chapters are of different models; ask about chapters of one model at a time"
            )
        self.shape = newest.shape
        self.step, self.extent = newest.step, newest.extent
        sizes = [len(chapter.head.times_us) for chapter in self.chapters]
        self._first: list[int] = [0, *np.cumsum(sizes).tolist()]
        self.times_us: Ints = np.concatenate([c.head.times_us + c.origin_us for c in self.chapters])
        self._present = np.concatenate([chapter.head.present for chapter in self.chapters])
        self.budget = budget_of(
            len(self.times_us), sum(chapter.head.tokens for chapter in self.chapters), self.settings
        )
        self.window = tuple(
            PastBlock(self, chapter, block, first)
            for chapter, first in zip(self.chapters, self._first, strict=False)
            for block in chapter.head.window
        )
        self.prefix, self.scenes = self._read_scenes()
        self.layers = [self._joined(layer) for layer in range(self.shape.layers)]
        self.span: FrameChoice = self.choice(since_us, until_us)

    # The interface `Readable`.

    @property
    def clustered(self) -> bool:
        """Whether the past has clusters, in addition to the blocks that answers read whole."""
        return any(int(layer.counts.sum()) for layer in self.layers)

    @property
    def covered_from_us(self) -> int | None:
        """Wall time of the oldest complete frame; None: there is none."""
        frames = self.held_frames()
        return int(self.times_us[frames[0]]) if len(frames) else None

    def held_frames(self) -> Ints:
        """Return the numbers of the complete frames, ascending."""
        out: Ints = np.flatnonzero(self._present)
        return out

    def choice(self, since_us: int | None, until_us: int | None) -> FrameChoice:
        """Choose the frames with since <= time < until."""
        allowed = np.ones(len(self.times_us), dtype=bool)
        if since_us is not None:
            allowed &= self.times_us >= since_us
        if until_us is not None:
            allowed &= self.times_us < until_us
        return FrameMask.of(allowed)

    # Retrieval.

    def choose(self, layer: int, query: torch.Tensor) -> Choice:
        """Run two-stage retrieval in one layer, as `retrieve` does over one memory.

        Args:
            layer: number of the layer.
            query: [width], mean over question tokens and each KV head's query heads; un-rotated.

        Raises:
            LostChapterError: a chapter cannot be read.
        """
        index, settings = self.layers[layer], self.settings
        q = query.to(index.keys.dtype)
        none = np.zeros(0, np.int64)

        def opened(scenes: Ints) -> tuple[Candidates, tuple[list[IndexRange], list[int]]]:
            ranges, chapters = self._index(layer, scenes), index.chapter[scenes].tolist()
            shift = [self._first[chapter] for chapter in chapters]
            # An id is unique only in its chapter, so the chapter's number comes before it.
            ids = [part.ids + (chapter << 40) for part, chapter in zip(ranges, chapters, strict=True)]
            counts = [self._inside(part, first) for part, first in zip(ranges, shift, strict=True)]
            candidates = Candidates(
                keys=torch.cat([index.keys[:0], *(part.keys for part in ranges)]),
                counts=np.concatenate([none, *counts]),
                ids=np.concatenate([none, *ids]),
                first=np.concatenate([none, *(p.first + s for p, s in zip(ranges, shift, strict=True))]),
                home=np.repeat(np.arange(len(ranges)), [len(part.ids) for part in ranges]),
            )
            return candidates, (ranges, chapters)

        candidates, (ranges, chapters) = first_stage(index, q, self.budget, settings, self.span, opened)
        picks = semantic_stage(candidates, q, self.budget, settings)
        starts = np.cumsum([0, *(len(part.ids) for part in ranges)])
        slabs: list[ChapterRange] = []
        frames, places, sizes = [none], [np.zeros((self.shape.axes, 0), np.int64)], []
        for row in picks.places.tolist():
            home = int(candidates.home[row])
            part, number = ranges[home], row - int(starts[home])
            begin = int(part.counts[:number].sum())
            tokens = slice(begin, begin + int(part.counts[number]))
            slabs.append((self.chapters[chapters[home]], part.slabs[number]))
            frames.append(part.token_frame[tokens] + self._first[chapters[home]])
            places.append(part.token_place[:, tokens])
            sizes.append(int(part.counts[number]))
        stands, spots, read = np.concatenate(frames), np.concatenate(places, 1), None
        if not self.span.whole or picks.partial:
            read = rows_read(self.span.holds(stands), sizes, picks.tokens)
            stands, spots = stands[read], spots[:, read]
        ids = tuple(candidates.ids[picks.places].tolist())
        scored = len(index.counts) + len(candidates.ids)
        return Choice(tuple(slabs), ids, stands, spots, scored, read)

    def _inside(self, part: IndexRange, first: int) -> Ints:
        """Return how many tokens of each cluster may be read, int64 [clusters]. `first` is the number of the
        chapter's first frame."""
        if self.span.whole:
            return part.counts
        own = np.repeat(np.arange(len(part.counts)), part.counts)
        inside = self.span.holds(part.token_frame + first)
        return np.bincount(own[inside], minlength=len(part.counts)).astype(np.int64)

    def read(self, choice: Choice, layer: int) -> list[torch.Tensor]:
        """Return the chosen slabs, [tokens, 2, kv_heads, head_dim] each. The window's rows of the layer are
        fetched in the same call, and stay in the cache.

        Raises:
            LostChapterError: a chapter cannot be read.
        """
        window = [(block.chapter, block.facts.data[layer]) for block in self.window]
        parts = self.get([*choice.slabs, *window])
        return [self.tensor(part) for part in parts[: len(choice.slabs)]]

    def get(self, requests: Sequence[ChapterRange]) -> list[bytes]:
        """Read ranges of the chapters, and count them.

        Raises:
            LostChapterError: a chapter cannot be read.
        """
        return self.ranges.get(requests, self.traffic, self._fetch)

    def tensor(self, data: bytes) -> torch.Tensor:
        """Convert a slab's bytes to a tensor [tokens, 2, kv_heads, head_dim]."""
        shape = self.shape
        flat = (
            torch.frombuffer(bytearray(data), dtype=shape.dtype)
            if data
            else torch.zeros(0, dtype=shape.dtype)
        )
        return flat.view(-1, 2, shape.kv_heads, shape.head_dim)

    def _index(self, layer: int, scenes: Ints) -> list[IndexRange]:
        joined = self.layers[layer]
        facts = []
        for scene in scenes.tolist():
            chapter, number = int(joined.chapter[scene]), int(joined.number[scene])
            facts.append((self.chapters[chapter], self.scenes[chapter][layer], number))
        data = self.get([(chapter, own.index_range(chapter.head, number)) for chapter, own, number in facts])
        out = []
        for part, (holder, own, number) in zip(data, facts, strict=True):
            with _readable(holder):
                clusters, tokens = int(own.clusters[number]), int(own.counts[number])
                out.append(IndexRange.unpacked(part, clusters, tokens, holder.head))
        return out

    def _read_scenes(self) -> tuple[Prefix, list[list[LayerScenes]]]:
        newest = self.chapters[-1]
        requests = [(newest, newest.head.prefix)]
        requests += [(chapter, place) for chapter in self.chapters for place, _ in chapter.head.scenes]
        data = iter(self.get(requests))
        with _readable(newest):
            prefix = unpacked_prefix(next(data))
        out = []
        for chapter in self.chapters:
            with _readable(chapter):
                scenes = chapter.head.scenes
                out.append([LayerScenes.unpacked(next(data), visual, self.shape) for _, visual in scenes])
        return prefix, out

    def _joined(self, layer: int) -> JoinedScenes:
        parts = [scenes[layer] for scenes in self.scenes]
        sizes = [len(part.counts) for part in parts]
        return JoinedScenes(
            keys=torch.cat([part.keys for part in parts]),
            counts=torch.cat([part.counts for part in parts]),
            frames=np.concatenate(
                [part.frames + first for part, first in zip(parts, self._first, strict=False)], 1
            ),
            chapter=np.repeat(np.arange(len(parts)), sizes),
            number=np.concatenate([np.arange(size) for size in sizes]),
        )


@contextmanager
def _readable(chapter: Chapter) -> Iterator[None]:
    """Turn errors inside the context into a LostChapterError, so that only this chapter is lost. A holder is
    untrusted, and can send invalid data whose checksums match."""
    try:
        yield
    except (ValueError, LookupError, TypeError, HistoryError) as error:
        raise LostChapterError(chapter.name, str(error)) from error


def _overlaps(chapter: Chapter, since_us: int | None, until_us: int | None) -> bool:
    times = chapter.head.times_us + chapter.origin_us
    allowed = chapter.head.present.copy()
    if since_us is not None:
        allowed &= times >= since_us
    if until_us is not None:
        allowed &= times < until_us
    return bool(allowed.any())


class PastBlock:
    """A block in a chapter's window, which is read whole. It has the interfaces of `OpenBlock` and
    `BornBlock`; its KV is fetched layer by layer."""

    def __init__(self, past: Past, chapter: Chapter, facts: WindowBlock, first: int) -> None:
        self._past, self.chapter, self.facts = past, chapter, facts
        self.first_frame = first + facts.first_frame
        self.frame: Ints = facts.frame - facts.first_frame
        self.places, self.rows, self.frames = facts.places, facts.rows, facts.frames
        self.keys, self.values = _Half(self, 0), _Half(self, 1)

    @property
    def block(self) -> PastBlock:
        """This block, as `WindowEntry` requires."""
        return self

    def layer(self, number: int) -> torch.Tensor:
        """Return K and V of a layer [rows, 2, kv_heads, head_dim]."""
        (data,) = self._past.get([(self.chapter, self.facts.data[number])])
        return self._past.tensor(data)


@dataclass(frozen=True, slots=True)
class _Half:
    """A block's keys (`which` 0) or values (`which` 1), by layer."""

    block: PastBlock
    which: int

    def __getitem__(self, layer: int, /) -> torch.Tensor:
        return self.block.layer(layer)[:, self.which].transpose(0, 1)


def covered_ranges(
    chapters: Sequence[Chapter], since_us: int | None, until_us: int | None, joint_us: int
) -> list[tuple[int, int]]:
    """Return the parts of a time range that chapters cover, as ranges [first, last] of frame times,
    ascending.

    Args:
        chapters: the chapters.
        since_us: only frames from this time on (Unix microseconds); None: all.
        until_us: only frames before this time; None: all.
        joint_us: frames at most this many microseconds apart belong to the same range.
    """
    parts: list[Any] = [np.zeros(0, np.int64)]
    parts += [(c.head.times_us + c.origin_us)[c.head.present] for c in chapters]
    times = np.unique(np.concatenate(parts))
    if since_us is not None:
        times = times[times >= since_us]
    if until_us is not None:
        times = times[times < until_us]
    if not len(times):
        return []
    cuts = np.flatnonzero(np.diff(times) > joint_us) + 1
    return [(int(run[0]), int(run[-1])) for run in np.split(times, cuts)]
