"""Landmarks of chapters in Redis: the vectors that ranking compares, also for chapters that still grow.

Keys (the part in braces is the hash tag):

- `lookout:{remembered}:cameras`: sorted set of cameras by the Unix second in which a holder last named them
- `lookout:{camera}:landmarks`: hash of chapter@version -> landmarks (`lookout.past.memory.ranking`)

A reader keeps what it has read, because a version never changes. Landmarks only decide an order; hits are
computed from records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from lookout.past.chapters.directory_keys import chapter_facts, chapters_key
from lookout.past.chapters.service import is_meant
from lookout.past.memory import HistoryError
from lookout.past.memory.chapters import ChapterFacts, ChapterFolder
from lookout.past.memory.ranking import SAMPLE, CameraPast, KeySpace, Landmarks, joined, landmarks_of
from lookout.runtime.net.redis_values import Kind, text_of, with_types
from lookout.runtime.store.directory import Directory
from lookout.runtime.store.labels import camera_entries
from lookout.wire import REDIS_KEYS

CAMERAS: Final = f"{REDIS_KEYS}{{remembered}}:cameras"
GROWING_S: Final = 15.0
"""Seconds between two updates of the landmarks of a growing chapter."""
_DAY_S: Final = 86_400
_BREAK_US: Final = 2_000_000
"""Time between two chapters of one recording: no window fits into it."""
_TOGETHER: Final = 256
"""Number of cameras read in one round trip."""
CACHE_BYTES: Final = 1 << 30
"""Limit of a reader's cache; above it, the cameras read first are evicted and ranked without landmarks."""


def landmarks_key(camera: str) -> str:
    """Return the key of the hash of a camera's landmarks."""
    return f"{camera_entries(camera)}landmarks"


class LandmarkWriter:
    """Keeps the landmarks of a folder's chapters in Redis.

    Args:
        client: Redis, with values as bytes.
        folder: The chapters.
        entry_ms: Milliseconds after which an entry expires unless it is renewed.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        folder: ChapterFolder,
        entry_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._folder, self._entry_ms, self._clock = client, folder, entry_ms, clock
        self._written_s: dict[str, float] = {}

    def write(self, camera: str, facts: Sequence[ChapterFacts], left: Sequence[str], room: int) -> int:
        """Write the landmarks of a camera's chapters, newest first; returns the bytes they take.

        Args:
            camera: Its id.
            facts: Its chapters here, oldest first.
            left: Chapters that are no longer here.
            room: Maximum bytes; chapters that do not fit are ranked without landmarks.
        """
        key, used = landmarks_key(camera), 0
        stored = {
            field: name.rpartition("@")[0]
            for field in with_types(self._client, {key: "hash"}, lambda: self._client.hkeys(key))
            if (name := text_of(field)) is not None
        }
        stale = {field for field, chapter in stored.items() if chapter in left}
        for chapter in reversed(facts):
            field = f"{chapter.name}@{chapter.version}".encode()
            earlier = {entry for entry, name in stored.items() if name == chapter.name and entry != field}
            if field in stored:
                used += int(self._client.hstrlen(key, field.decode()))  # type: ignore[arg-type]
                stale |= earlier
                continue
            if earlier and not chapter.sealed and not self._is_due(chapter.name):
                continue
            try:
                value = landmarks_of(*self._folder.read(chapter.name)).packed()
            except (HistoryError, ValueError, IndexError):
                continue  # gone since it was listed, or its data do not fit its head: readers reject it, too
            if used + len(value) <= room:
                self._client.hset(key, field.decode(), value)  # type: ignore[arg-type]
                self._written_s[chapter.name] = self._clock()
                used += len(value)
            stale |= earlier
        if stale:
            self._client.hdel(key, *stale)  # type: ignore[arg-type]
        if facts:
            self._client.pexpire(key, self._entry_ms)
            now = time.time()
            self._client.zadd(CAMERAS, {camera: now})
            self._client.zremrangebyscore(CAMERAS, "-inf", now - _DAY_S)
        return used

    def erase(self, camera: str) -> int:
        """Remove everything of a camera, whoever wrote it; returns how many entries there were."""
        self._client.zrem(CAMERAS, camera)
        return int(self._client.delete(landmarks_key(camera)))  # type: ignore[arg-type]

    def _is_due(self, chapter: str) -> bool:
        return self._clock() - self._written_s.get(chapter, -GROWING_S) >= GROWING_S


@dataclass(frozen=True, slots=True, eq=False)
class RememberedPasts:
    """What the directory says of cameras.

    Attributes:
        cameras: Their pasts, by camera; keys of their landmarks are in `space`.
        space: None: there are no landmarks.
    """

    cameras: dict[str, CameraPast]
    space: KeySpace | None


@dataclass(slots=True, eq=False)
class _CameraCache:
    """What was read of a camera.

    Attributes:
        parts: Landmarks by field; None: they are not landmarks, or of another model.
        older: The fields of all chapters but the newest, and their landmarks as one.
    """

    parts: dict[str, Landmarks | None] = field(default_factory=dict)
    older: tuple[frozenset[str], list[Landmarks]] = (frozenset(), [])

    @property
    def landmarks(self) -> dict[str, Landmarks]:
        """The valid landmarks, by field."""
        return {name: marks for name, marks in self.parts.items() if marks is not None and len(marks)}

    @property
    def bytes(self) -> int:
        """Bytes of the landmarks."""
        return sum(marks.nbytes for marks in self.landmarks.values())

    def joined(self) -> list[Landmarks]:
        """Those of chapters that no longer change as one, so that ranking a camera's day is one product."""
        parts = self.landmarks
        if not parts:
            return []
        newest = max(parts, key=lambda name: int(parts[name].begin_us[-1]))
        names = sorted(parts.keys() - {newest})
        if frozenset(names) != self.older[0]:
            together = [joined([parts[name] for name in names])] if names else []
            self.older = frozenset(names), together
            first = 0
            for name in names:  # the parts share its memory
                stop = first + len(parts[name])
                self.parts[name] = together[0].part(slice(first, stop))
                first = stop
        return [*self.older[1], parts[newest]]


class _Cache:
    """The landmarks that were read, with their keys in one space. Thread-safe."""

    def __init__(self) -> None:
        self.space: KeySpace | None = None
        self._cameras: OrderedDict[str, _CameraCache] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def unread(self, fields: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Drop what Redis no longer has of cameras; return the fields that are not cached."""
        with self._lock:
            out: dict[str, list[str]] = {}
            for camera, names in fields.items():
                own = self._cameras.setdefault(camera, _CameraCache())
                for name in own.parts.keys() - set(names):
                    self._count(own.parts.pop(name), -1)
                if unread := [name for name in names if name not in own.parts]:
                    out[camera] = unread
            return out

    def keep(self, camera: str, name: str, marks: Landmarks | None) -> None:
        """Add landmarks as they were read."""
        with self._lock:
            own = self._cameras.setdefault(camera, _CameraCache())
            self._count(own.parts.get(name), -1)
            own.parts[name] = marks = self._inside(marks)
            self._count(marks, 1)

    def settle(self) -> None:
        """Choose the key space on first use, and evict the cameras read first above `CACHE_BYTES`."""
        with self._lock:
            if self.space is None and (marks := self._all()):
                kinds = Counter((tuple(own.layers), own.keys.shape[2]) for own in marks)
                kind = kinds.most_common(1)[0][0]
                self.space = KeySpace.of(
                    [own for own in marks if (tuple(own.layers), own.keys.shape[2]) == kind]
                )
                for camera in self._cameras.values():
                    camera.parts = {name: self._inside(own) for name, own in camera.parts.items()}
                self._bytes = sum(own.nbytes for own in self._all())
            while self._bytes > CACHE_BYTES:
                self._bytes -= self._cameras.popitem(last=False)[1].bytes

    def joined(self, camera: str) -> list[Landmarks]:
        """The landmarks of a camera."""
        with self._lock:
            return self._cameras.get(camera, _CameraCache()).joined()

    def forget(self, camera: str) -> None:
        """Drop a camera."""
        with self._lock:
            self._bytes -= self._cameras.pop(camera, _CameraCache()).bytes

    def is_outgrown(self) -> bool:
        """Whether the space is of few clusters and there are many more by now."""
        with self._lock:
            size = SAMPLE if self.space is None else self.space.sample.shape[1]
            return size < SAMPLE and sum(map(len, self._all())) >= 2 * size

    def _all(self) -> list[Landmarks]:
        return [own for camera in self._cameras.values() for own in camera.landmarks.values()]

    def _inside(self, marks: Landmarks | None) -> Landmarks | None:
        if marks is None or self.space is None:
            return marks
        return self.space.landmarks(marks) if self.space.fits(marks) else None

    def _count(self, marks: Landmarks | None, sign: int) -> None:
        self._bytes += 0 if marks is None else sign * marks.nbytes


def _without_breaks(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Times of chapters, ascending; those that follow one another within a stride are one."""
    out = [spans[0]]
    for begin_us, end_us in spans[1:]:
        if begin_us <= out[-1][1] + _BREAK_US:
            out[-1] = out[-1][0], max(out[-1][1], end_us)
        else:
            out.append((begin_us, end_us))
    return out


class LandmarkReader:
    """Reads the landmarks of cameras, and caches them: a version never changes. Thread-safe.

    Keys are kept in the few directions in which they vary (`KeySpace`). While only few were read, these are
    chosen again once there are twice as many.

    Args:
        directory: Whether Redis answers.
        client: Redis, with values as bytes.
        model_digest: Landmarks of other models are left out.
    """

    def __init__(self, directory: Directory, client: redis.Redis, model_digest: str) -> None:
        self._directory, self._client, self._model_digest = directory, client, model_digest
        self._cache = _Cache()

    def pasts(self, cameras: Sequence[str]) -> RememberedPasts:
        """Return the pasts of cameras that match ids and patterns.

        Args:
            cameras: Ids, and patterns with `*`.

        Raises:
            DirectoryDownError: Redis does not answer.
        """
        listing = self._asking({CAMERAS: "zset"}, lambda: self._client.zrange(CAMERAS, 0, -1))
        remembered = [camera for raw in listing if (camera := text_of(raw)) is not None]
        names = [camera for camera in remembered if any(is_meant(camera, pattern) for pattern in cameras)]
        cache = self._cache
        pasts = self._pasts(names, cache)
        if cache.is_outgrown():
            cache = self._cache = _Cache()
            pasts = self._pasts(names, cache)
        return RememberedPasts(pasts, cache.space)

    def forget(self, camera: str) -> None:
        """Drop what was cached of a camera."""
        self._cache.forget(camera)

    def _pasts(self, cameras: Sequence[str], cache: _Cache) -> dict[str, CameraPast]:
        out: dict[str, CameraPast] = {}
        for first in range(0, len(cameras), _TOGETHER):
            out |= self._some(cameras[first : first + _TOGETHER], cache)
        return out

    def _some(self, cameras: Sequence[str], cache: _Cache) -> dict[str, CameraPast]:
        """Read the pasts of a few cameras, in two round trips."""
        kinds: dict[str, Kind] = {chapters_key(camera): "hash" for camera in cameras}
        kinds |= {landmarks_key(camera): "hash" for camera in cameras}

        def listing() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for camera in cameras:
                    pipe.hgetall(chapters_key(camera))
                    pipe.hkeys(landmarks_key(camera))
                return pipe.execute()

        answers = self._asking(kinds, listing)
        fields = {
            camera: [name for raw in keys if (name := text_of(raw)) is not None]
            for camera, keys in zip(cameras, answers[1::2], strict=True)
        }
        self._read(cache.unread(fields), cache)
        cache.settle()
        out: dict[str, CameraPast] = {}
        for camera, stored in zip(cameras, answers[::2], strict=True):
            spans = sorted((facts["begin_us"], facts["end_us"]) for facts in chapter_facts(stored).values())
            if spans:
                out[camera] = CameraPast(_without_breaks(spans), cache.joined(camera))
        return out

    def _read(self, missing: Mapping[str, Sequence[str]], cache: _Cache) -> None:
        """Fetch what is not cached yet."""
        if not missing:
            return

        def read() -> list[list[bytes | None]]:
            with self._client.pipeline(transaction=False) as pipe:
                for camera, names in missing.items():
                    pipe.hmget(landmarks_key(camera), names)
                return pipe.execute()

        kinds: dict[str, Kind] = {landmarks_key(camera): "hash" for camera in missing}
        for (camera, names), values in zip(missing.items(), self._asking(kinds, read), strict=True):
            for name, value in zip(names, values, strict=True):
                cache.keep(camera, name, self._unpacked(name, value))

    def _unpacked(self, name: str, value: bytes | None) -> Landmarks | None:
        """None: somebody else wrote the value, or it is of another model; its chapter is ranked as one
        without landmarks."""
        if value is None:
            return None
        with contextlib.suppress(HistoryError):
            marks = Landmarks.unpacked(value, f"landmarks of {name}")
            return marks if marks.model_digest == self._model_digest else None
        return None

    def _asking(self, kinds: Mapping[str, Kind], ask: Callable[[], Any]) -> list[Any]:
        return list(self._directory.asking(lambda: with_types(self._client, kinds, ask)))
