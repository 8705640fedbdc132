"""Writes chapters' landmarks to Redis and reads them. Landmarks are the vectors by which searches rank spans.

Keys (the part in braces is the hash tag):

- `lookout:{remembered}:cameras`: sorted set of cameras, scored by the Unix second of the last announcement
- `lookout:{camera}:landmarks`: hash of chapter@version -> landmarks (`lookout.past.memory.ranking`)

Readers cache landmarks, because the landmarks of a chapter's version never change. Landmarks only decide the
order in which spans are searched; hits are computed from records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import redis

from lookout.past.chapters.directory_keys import chapter_facts, chapters_key
from lookout.past.chapters.service import is_meant
from lookout.past.memory import HistoryError
from lookout.past.memory.chapters import ChapterFacts, ChapterFolder
from lookout.past.memory.ranking import SAMPLE, CameraPast, KeySpace, Landmarks, joined, landmarks_of
from lookout.runtime.net.redis_values import Kind, text_of, with_types
from lookout.runtime.store import Directory, DirectoryDownError
from lookout.runtime.store.labels import camera_entries
from lookout.wire import REDIS_KEYS

CAMERAS: Final = f"{REDIS_KEYS}{{remembered}}:cameras"
GROWING_S: Final = 15.0
"""Seconds between two updates of the landmarks of a growing chapter."""
_DAY_S: Final = 86_400
_BREAK_US: Final = 2_000_000
"""Chapters at most this far apart (microseconds) count as adjacent: no window fits between them."""
_TOGETHER: Final = 64
"""Number of cameras read in one round trip: about 60 MB if each has a day of landmarks and none is cached."""
_LISTING: Final = """
local out = {}
for place, command in ipairs({'HGETALL', 'HKEYS'}) do
  local found = redis.pcall(command, KEYS[place])
  if found.err then return found end
  out[2 * place - 1], out[2 * place] = #found, table.concat(found, '\\n')
end
return out
"""
"""Returns two lists for a camera, the facts of its chapters and the fields of its landmarks. Each list is its
number of values, and all values joined into one string, because parsing hundreds of values is slow. The
client splits the string only if it has changed since the last read."""
CACHE_BYTES: Final = 1 << 30
"""Byte limit of a reader's cache. Above it, the cameras that entered the cache first are evicted, and are
ranked without landmarks."""


def landmarks_key(camera: str) -> str:
    """Return the Redis key of the hash with a camera's landmarks."""
    return f"{camera_entries(camera)}landmarks"


class LandmarkWriter:
    """Writes the landmarks of a folder's chapters to Redis.

    Args:
        client: Redis client that returns values as bytes.
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

    def write(self, camera: str, facts: Sequence[ChapterFacts], dropped: Sequence[str], room: int) -> int:
        """Write the landmarks of a camera's chapters, newest first; return the bytes they take.

        Args:
            camera: Id of the camera.
            facts: The camera's chapters in this folder, oldest first.
            dropped: Names of chapters that this folder no longer has; their landmarks are removed.
            room: Maximum bytes; chapters that do not fit are ranked without landmarks.
        """
        key, used = landmarks_key(camera), 0
        stored = {
            field: name.rpartition("@")[0]
            for field in with_types(self._client, {key: "hash"}, lambda: self._client.hkeys(key))
            if (name := text_of(field)) is not None
        }
        stale = {field for field, chapter in stored.items() if chapter in dropped}
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
                # removed since it was listed, or its data contradict its head, so readers reject it, too
                continue
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
        """Remove the landmarks of a camera, from all holders; return the number of keys removed."""
        self._client.zrem(CAMERAS, camera)
        return int(self._client.delete(landmarks_key(camera)))  # type: ignore[arg-type]

    def _is_due(self, chapter: str) -> bool:
        return self._clock() - self._written_s.get(chapter, -GROWING_S) >= GROWING_S


@dataclass(frozen=True, slots=True, eq=False)
class RememberedPasts:
    """The pasts of some cameras, as Redis has them.

    Attributes:
        cameras: Pasts by camera; the keys in their landmarks are coordinates in `space`.
        space: The space of the keys; None: there are no landmarks.
    """

    cameras: dict[str, CameraPast]
    space: KeySpace | None


@dataclass(slots=True, eq=False)
class _CameraCache:
    """The cached past of one camera.

    Attributes:
        parts: Landmarks by field of the Redis hash; None: the value is invalid, another model's, or without
            clusters.
        last: Begin of the newest cluster in each field, Unix microseconds.
        older: Fields of all chapters except the newest, and their landmarks joined into one.
        listing: Hash of the newest listing from Redis; None: no listing was read yet.
        times: Begin and end of each chapter, by the hash of its entry; None: the entry is invalid.
        past: The past that the listing describes; None: a part of the past was not read yet.
    """

    parts: dict[bytes, Landmarks | None] = field(default_factory=dict)
    last: dict[bytes, int] = field(default_factory=dict)
    older: tuple[Set[bytes], list[Landmarks]] = (frozenset(), [])
    listing: int | None = None
    times: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    past: CameraPast | None = None

    @property
    def landmarks(self) -> dict[bytes, Landmarks]:
        """The valid landmarks, by field."""
        return {name: marks for name, marks in self.parts.items() if marks is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of the landmarks."""
        return sum(marks.nbytes for marks in self.landmarks.values())

    def put(self, name: bytes, marks: Landmarks | None) -> int:
        """Store the landmarks of a field; return by how many bytes the cache grew."""
        before = self.drop(name)
        self.parts[name] = marks
        if marks is None:
            return -before
        self.last[name] = int(marks.begin_us[-1])
        return marks.nbytes - before

    def drop(self, name: bytes) -> int:
        """Remove a field; return by how many bytes the cache shrank."""
        self.last.pop(name, None)
        marks = self.parts.pop(name, None)
        return 0 if marks is None else marks.nbytes

    def joined(self) -> list[Landmarks]:
        """Return the landmarks of all chapters except the newest joined into one, followed by the newest's.
        Ranking then needs at most two matrix products."""
        if not self.last:
            return []
        newest = max(self.last, key=self.last.__getitem__)
        names = self.last.keys() - {newest}
        if names != self.older[0]:
            valid = self.landmarks
            parts = {name: valid[name] for name in sorted(names)}
            together = [joined([*parts.values()])] if parts else []
            self.older = names, together
            if parts:
                self.parts |= _split(together[0], parts)  # views of the joined arrays
        return [*self.older[1], *filter(None, [self.parts[newest]])]


_Field = TypeVar("_Field")  # a field of the Redis hash, or a camera with such a field


def _split(whole: Landmarks, parts: Mapping[_Field, Landmarks]) -> dict[_Field, Landmarks]:
    """Undo `joined`: return the parts of `whole` as views, under the names and with the sizes of `parts`."""
    out, first = {}, 0
    for name, part in parts.items():
        out[name] = whole.part(slice(first, first + len(part)))
        first += len(part)
    return out


class _Cache:
    """Caches cameras' landmarks, with all keys converted to one space. Thread-safe."""

    def __init__(self) -> None:
        self.space: KeySpace | None = None
        self._cameras: OrderedDict[str, _CameraCache] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def known(self, camera: str, listing: int) -> CameraPast | None:
        """Return a camera's cached past; None if it is not cached or the listing has changed."""
        with self._lock:
            own = self._cameras.get(camera)
            return own.past if own is not None and own.listing == listing else None

    def unread(
        self, camera: str, listing: int, entries: Sequence[bytes], fields: Sequence[bytes]
    ) -> tuple[list[tuple[int, int]], list[bytes]]:
        """Update a camera to a new listing, and drop cached fields that are no longer listed.

        Args:
            camera: Id of the camera.
            listing: Hash of the listing.
            entries: Names and facts of the camera's chapters, alternating.
            fields: Fields of the camera's landmarks.

        Returns:
            Begin and end of each chapter, ascending, and the fields that are not cached.
        """
        with self._lock:
            own = self._cameras.setdefault(camera, _CameraCache())
            stored = set(fields)
            for name in own.parts.keys() - stored:
                self._bytes -= own.drop(name)
            memo, own.times = own.times, {}
            for entry in zip(entries[::2], entries[1::2], strict=True):
                key = hash(entry)
                own.times[key] = memo[key] if key in memo else _times(*entry)
            own.listing, own.past = listing, None
            times = sorted(filter(None, own.times.values()))
            return times, [name for name in stored - own.parts.keys() if _is_name(name)]

    def keep(self, read: Mapping[tuple[str, bytes], Landmarks | None]) -> None:
        """Add landmarks read from Redis, by camera and field."""
        with self._lock:
            for (camera, name), marks in self._in_space(read).items():
                own = self._cameras.setdefault(camera, _CameraCache())
                self._bytes += own.put(name, marks)

    def settle(self) -> None:
        """Choose the key space on first use, and evict the oldest entries while above `CACHE_BYTES`."""
        with self._lock:
            if self.space is None and (marks := self._valid_landmarks()):
                kinds = Counter((tuple(own.layers), own.keys.shape[2]) for own in marks)
                kind = kinds.most_common(1)[0][0]
                self.space = KeySpace.of(
                    [own for own in marks if (tuple(own.layers), own.keys.shape[2]) == kind]
                )
                for camera in self._cameras.values():
                    for name, own in self._in_space(camera.parts).items():
                        camera.put(name, own)
                self._bytes = sum(own.nbytes for own in self._valid_landmarks())
            while self._bytes > CACHE_BYTES:
                self._bytes -= self._cameras.popitem(last=False)[1].nbytes

    def past(self, camera: str, listing: int, times: Sequence[tuple[int, int]], *, whole: bool) -> CameraPast:
        """Return a camera's past. If all of the listing was read (`whole`), cache it until the listing
        changes."""
        with self._lock:
            own = self._cameras.get(camera, _CameraCache())
            past = CameraPast(_without_breaks(times), own.joined())
            if whole and own.listing == listing:
                own.past = past
            return past

    def forget(self, camera: str) -> None:
        """Remove a camera from the cache."""
        with self._lock:
            self._bytes -= self._cameras.pop(camera, _CameraCache()).nbytes

    def is_outgrown(self) -> bool:
        """Whether the space was chosen from fewer than `SAMPLE` clusters, and the cache now has at least
        twice as many."""
        with self._lock:
            size = SAMPLE if self.space is None else self.space.sample.shape[1]
            return size < SAMPLE and sum(map(len, self._valid_landmarks())) >= 2 * size

    def _valid_landmarks(self) -> list[Landmarks]:
        return [own for camera in self._cameras.values() for own in camera.landmarks.values()]

    def _in_space(self, parts: Mapping[_Field, Landmarks | None]) -> dict[_Field, Landmarks | None]:
        """Convert landmarks to the chosen space with one matrix product. Landmarks that are empty or of
        another shape become None. Before a space is chosen, keys are not converted."""
        out = {name: own if own is not None and len(own) else None for name, own in parts.items()}
        if (space := self.space) is None:
            return out
        fitting = {name: own for name, own in out.items() if own is not None and space.fits(own)}
        out = dict.fromkeys(out)
        if fitting:
            out |= _split(space.landmarks(joined([*fitting.values()])), fitting)
        return out


def _listed(count: int, text: bytes) -> list[bytes] | None:
    """Split the joined values of a listing; None if a value contains the separator, which holders never
    write."""
    values = text.split(b"\n") if count else []
    return values if len(values) == count else None


def _is_name(field: bytes) -> bool:
    """Whether the bytes can be the name of a field with landmarks."""
    return (text := text_of(field)) is not None and text.isprintable()


def _times(name: bytes, facts: bytes) -> tuple[int, int] | None:
    """Return the wall times of a chapter's first and last frame; None if the entry is invalid."""
    for own in chapter_facts({name: facts}).values():
        return own["begin_us"], own["end_us"]
    return None


def _without_breaks(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join chapters' time ranges (ascending) that overlap or are at most `_BREAK_US` apart."""
    out: list[tuple[int, int]] = []
    for begin_us, end_us in spans:
        if out and begin_us <= out[-1][1] + _BREAK_US:
            out[-1] = out[-1][0], max(out[-1][1], end_us)
        else:
            out.append((begin_us, end_us))
    return out


class LandmarkReader:
    """Reads cameras' landmarks and caches them. Thread-safe.

    Keys are stored as coordinates along the few directions in which they vary most (`KeySpace`). If the
    directions were chosen from few clusters, they are chosen again once there are twice as many clusters.

    Args:
        directory: Makes the calls to Redis, and tracks whether Redis answers.
        client: Redis client that returns values as bytes.
        model_digest: Landmarks of other models are omitted.
    """

    def __init__(self, directory: Directory, client: redis.Redis, model_digest: str) -> None:
        self._directory, self._client, self._model_digest = directory, client, model_digest
        self._cache = _Cache()
        self._reading = threading.Lock()

    def pasts(self, cameras: Sequence[str]) -> RememberedPasts:
        """Return the pasts of the cameras that match.

        Args:
            cameras: Ids, and patterns with `*`.

        Raises:
            DirectoryDownError: Redis does not answer.
        """
        names = self._remembered(cameras)
        cache = self._cache
        pasts = self._pasts(names, cache)
        if cache.is_outgrown():
            cache = self._cache = _Cache()
            pasts = self._pasts(names, cache)
        return RememberedPasts(pasts, cache.space)

    def read_ahead(self) -> None:
        """Fill the cache with all landmarks, so that the first `pasts` is fast. Other calls may run
        meanwhile."""
        with contextlib.suppress(DirectoryDownError):
            self._pasts(self._remembered(["*"]), self._cache, pause_s=0.01)

    def forget(self, camera: str) -> None:
        """Remove a camera from the cache."""
        self._cache.forget(camera)

    def _remembered(self, cameras: Sequence[str]) -> list[str]:
        """Return the ids of the cameras with a memory that match an id or a pattern."""
        listing = self._asking({CAMERAS: "zset"}, lambda: self._client.zrange(CAMERAS, 0, -1))
        remembered = [camera for raw in listing if (camera := text_of(raw)) is not None]
        return [camera for camera in remembered if any(is_meant(camera, pattern) for pattern in cameras)]

    def _pasts(self, cameras: Sequence[str], cache: _Cache, pause_s: float = 0.0) -> dict[str, CameraPast]:
        out: dict[str, CameraPast] = {}
        for first in range(0, len(cameras), _TOGETHER):
            with self._reading:  # one caller at a time, so that waiting callers find the result in the cache
                out |= self._pasts_of_batch(cameras[first : first + _TOGETHER], cache)
            time.sleep(pause_s)  # even if 0, so that a waiting caller gets the lock
        return out

    def _pasts_of_batch(self, cameras: Sequence[str], cache: _Cache) -> dict[str, CameraPast]:
        """Read the pasts of up to `_TOGETHER` cameras in two round trips: listings, then missing
        landmarks."""
        kinds: dict[str, Kind] = {chapters_key(camera): "hash" for camera in cameras}
        kinds |= {landmarks_key(camera): "hash" for camera in cameras}

        def listing() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                for camera in cameras:
                    # Sent as text, because pipelines of a Redis cluster cannot call scripts by digest.
                    keys = chapters_key(camera), landmarks_key(camera)
                    pipe.execute_command("EVAL", _LISTING, 2, *keys)  # type: ignore[no-untyped-call]
                return pipe.execute()

        out: dict[str, CameraPast] = {}
        changed: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        missing: dict[str, list[bytes]] = {}
        incomplete: set[str] = set()
        for camera, listed in zip(cameras, self._asking(kinds, listing), strict=True):
            number = hash(tuple(listed))
            if (past := cache.known(camera, number)) is not None:
                out[camera] = past
                continue
            facts, fields = _listed(*listed[:2]), _listed(*listed[2:])
            if facts is None or fields is None:
                incomplete.add(camera)  # the listing read next may be newer than `number`
                facts, fields = self._listing_by_value(camera)
            times, unread = cache.unread(camera, number, facts, fields)
            changed[camera] = number, times
            if unread:
                missing[camera] = unread
        incomplete |= self._read(missing, cache)
        if changed:
            cache.settle()
        for camera, (number, times) in changed.items():
            out[camera] = cache.past(camera, number, times, whole=camera not in incomplete)
        return {camera: past for camera, past in out.items() if past.chapters}

    def _listing_by_value(self, camera: str) -> tuple[list[bytes], list[bytes]]:
        """Read a camera's listing with its values not joined. Returns names and facts of the camera's
        chapters, alternating, and the fields of its landmarks."""
        facts, fields = chapters_key(camera), landmarks_key(camera)

        def listing() -> list[Any]:
            return [self._client.hgetall(facts), self._client.hkeys(fields)]

        entries, names = self._asking({facts: "hash", fields: "hash"}, listing)
        return [value for entry in entries.items() for value in entry], names

    def _read(self, missing: Mapping[str, Sequence[bytes]], cache: _Cache) -> set[str]:
        """Fetch landmarks that are not cached. Return the cameras of which a field was removed from Redis
        since the listing."""
        incomplete: set[str] = set()
        if not missing:
            return incomplete

        def read() -> list[list[bytes | None]]:
            with self._client.pipeline(transaction=False) as pipe:
                for camera, names in missing.items():
                    pipe.hmget(landmarks_key(camera), names)
                return pipe.execute()

        kinds: dict[str, Kind] = {landmarks_key(camera): "hash" for camera in missing}
        found: dict[tuple[str, bytes], Landmarks | None] = {}
        for (camera, names), values in zip(missing.items(), self._asking(kinds, read), strict=True):
            for name, value in zip(names, values, strict=True):
                if value is None:
                    incomplete.add(camera)
                else:
                    found[camera, name] = self._unpacked(value)
        cache.keep(found)
        return incomplete

    def _unpacked(self, value: bytes) -> Landmarks | None:
        """Unpack landmarks; None if the value is invalid or another model's. The chapter is then ranked
        without landmarks."""
        with contextlib.suppress(HistoryError):
            marks = Landmarks.unpacked(value, "landmarks")
            return marks if marks.model_digest == self._model_digest else None
        return None

    def _asking(self, kinds: Mapping[str, Kind], ask: Callable[[], Any]) -> list[Any]:
        return list(self._directory.asking(lambda: with_types(self._client, kinds, ask)))
