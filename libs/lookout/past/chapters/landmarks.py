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
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis

from lookout.past.chapters.directory_keys import chapter_facts, chapters_key
from lookout.past.chapters.service import is_meant
from lookout.past.memory import HistoryError
from lookout.past.memory.chapters import ChapterFacts, ChapterFolder
from lookout.past.memory.ranking import CameraPast, Landmarks, landmarks_of
from lookout.runtime.net.redis_values import Kind, text_of, with_types
from lookout.runtime.store.directory import Directory
from lookout.runtime.store.labels import camera_entries
from lookout.wire import REDIS_KEYS

CAMERAS: Final = f"{REDIS_KEYS}{{remembered}}:cameras"
GROWING_S: Final = 15.0
"""Seconds between two updates of the landmarks of a growing chapter."""
_DAY_S: Final = 86_400
_TOGETHER: Final = 256
"""Number of cameras read in one round trip."""
_CACHE_BYTES: Final = 1 << 30


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


class LandmarkReader:
    """Reads the landmarks of cameras, and caches them: a version never changes. Thread-safe.

    Args:
        directory: Whether Redis answers.
        client: Redis, with values as bytes.
    """

    def __init__(self, directory: Directory, client: redis.Redis) -> None:
        self._directory, self._client = directory, client
        self._cache: OrderedDict[tuple[str, str], Landmarks | None] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def pasts(self, cameras: Sequence[str], model_digest: str = "") -> dict[str, CameraPast]:
        """Return the pasts of cameras that match ids and patterns, by camera.

        Args:
            cameras: Ids, and patterns with `*`.
            model_digest: Landmarks of other models are left out; empty: those of any model count.

        Raises:
            DirectoryDownError: Redis does not answer.
        """
        listing = self._asking({CAMERAS: "zset"}, lambda: self._client.zrange(CAMERAS, 0, -1))
        remembered = [camera for raw in listing if (camera := text_of(raw)) is not None]
        names = [camera for camera in remembered if any(is_meant(camera, pattern) for pattern in cameras)]
        out: dict[str, CameraPast] = {}
        for first in range(0, len(names), _TOGETHER):
            out |= self._some(names[first : first + _TOGETHER], model_digest)
        return out

    def forget(self, camera: str) -> None:
        """Drop what was cached of a camera."""
        with self._lock:
            self._forget(lambda place: place[0] == camera)

    def _some(self, cameras: Sequence[str], model_digest: str) -> dict[str, CameraPast]:
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
        self._read(fields)
        out: dict[str, CameraPast] = {}
        for camera, stored in zip(cameras, answers[::2], strict=True):
            spans = [(facts["begin_us"], facts["end_us"]) for facts in chapter_facts(stored).values()]
            if spans:
                out[camera] = CameraPast(spans, self._landmarks(camera, fields[camera], model_digest))
        return out

    def _read(self, fields: Mapping[str, Sequence[str]]) -> None:
        """Fetch what is not cached yet, and drop what Redis no longer has."""
        with self._lock:
            self._forget(lambda place: place[0] in fields and place[1] not in fields[place[0]])
            missing = {
                camera: unread
                for camera, names in fields.items()
                if (unread := [name for name in names if (camera, name) not in self._cache])
            }
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
                self._keep(camera, name, value)

    def _landmarks(self, camera: str, fields: Sequence[str], model_digest: str) -> list[Landmarks]:
        with self._lock:
            entries = [self._cache.get((camera, field)) for field in fields]
        return [
            marks
            for marks in entries
            if marks is not None and (not model_digest or marks.model_digest == model_digest)
        ]

    def _keep(self, camera: str, field: str, value: bytes | None) -> None:
        marks = None
        if value is not None:
            # If somebody else wrote the value, the chapter is ranked as one without landmarks.
            with contextlib.suppress(HistoryError):
                marks = Landmarks.unpacked(value, f"landmarks of {field}")
        with self._lock:
            self._cache[camera, field] = marks
            self._bytes += 0 if marks is None else marks.keys.nbytes
            while self._bytes > _CACHE_BYTES:
                self._drop(next(iter(self._cache)))

    def _forget(self, leaves: Callable[[tuple[str, str]], bool]) -> None:
        for place in [place for place in self._cache if leaves(place)]:
            self._drop(place)

    def _drop(self, place: tuple[str, str]) -> None:
        marks = self._cache.pop(place)
        self._bytes -= 0 if marks is None else marks.keys.nbytes

    def _asking(self, kinds: Mapping[str, Kind], ask: Callable[[], Any]) -> list[Any]:
        return list(self._directory.asking(lambda: with_types(self._client, kinds, ask)))
