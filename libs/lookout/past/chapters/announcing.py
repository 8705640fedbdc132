"""Announces chapters in Redis: each chapter's facts and the scenes of its layers, within a budget per camera.

Keys (the part in braces is the hash tag, so all keys of a camera are in one slot):

- `lookout:{camera}:chapters`: hash of chapter -> JSON with holder, version, state, time range and bytes
- `lookout:{camera}:scenes:chapter`: hash of `version` -> the chapter's version, and of each layer's number ->
  the layer's scenes (`lookout.past.memory.catalogue`) as one value

All keys have a TTL, which the holder renews. A camera's budget is spent on its landmarks first (`landmarks`),
then on the scenes of its chapters, newest chapter first. Scenes that do not fit are omitted; readers get them
from the holder. Readers do not trust Redis: they compare scenes with the checksums in the chapter's head,
which comes from the holder.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import redis
import structlog

from lookout.past.chapters.directory_keys import (
    DirectoryFacts,
    chapter_facts,
    chapters_key,
)
from lookout.past.chapters.landmarks import LandmarkWriter
from lookout.past.memory import HistoryError
from lookout.past.memory.chapters import ChapterFacts, ChapterFolder
from lookout.runtime.net.redis_values import Kind, is_wrong_type, text_of, with_types
from lookout.runtime.store import DirectoryDownError
from lookout.runtime.store.directory import Directory
from lookout.runtime.store.labels import camera_entries
from lookout.runtime.worker import Supervisor

_log = structlog.get_logger(__name__)


def scenes_key(camera: str, chapter: str) -> str:
    """Return the Redis key of the hash with a chapter's scenes."""
    return f"{camera_entries(camera)}scenes:{chapter}"


class ChapterAnnouncer:
    """Announces the chapters of a folder in Redis, from its own thread, and keeps the announcements current.
    While Redis is unavailable, it retries.

    Args:
        directory: makes the calls to Redis, and tracks whether Redis answers.
        client: Redis client that returns values as bytes.
        folder: the chapters.
        pod: this holder's name.
        camera_bytes: maximum bytes of landmarks and scenes per camera.
        entry_s: seconds after which an entry expires unless it is renewed.
        supervisor: notified if the thread dies.
    """

    def __init__(
        self,
        directory: Directory,
        client: redis.Redis,
        folder: ChapterFolder,
        pod: str,
        *,
        camera_bytes: int = 32 << 20,
        entry_s: float = 600.0,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._directory, self._client, self._folder, self._pod = directory, client, folder, pod
        self._budget, self._entry_ms = camera_bytes, int(entry_s * 1000)
        self._landmarks = LandmarkWriter(client, folder, self._entry_ms)
        self._wake = threading.Event()
        self._changed: set[str] = set()
        self._announced: set[str] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._round_s = entry_s / 3
        folder.changed = self.changed
        self._supervisor = supervisor or Supervisor()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Announce all chapters, and keep the announcements current."""
        self._thread = self._supervisor.start("chapters-directory", self._run)

    def stop(self) -> None:
        """Stop the thread and remove this holder's announcements, so that no reader is sent here."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        for camera in tuple(
            self._announced
        ):  # a copy, because `_write_entries` removes the camera from the set
            try:
                self._directory.asking(lambda camera=camera: self._write_entries(camera, []), retry=True)  # type: ignore[misc]
            except DirectoryDownError:
                return

    def changed(self, camera: str) -> None:
        """Request a new announcement because a camera's chapters have changed. Returns at once."""
        with self._lock:
            self._changed.add(camera)
        self._wake.set()

    def erase(self, camera: str) -> int:
        """Remove all entries of a camera's chapters from Redis, for all holders, then announce this holder's
        current chapters. Other holders announce their chapters again on their own.

        Returns:
            The number of entries removed.

        Raises:
            DirectoryDownError: Redis does not answer.
        """
        facts = self._folder.chapters(camera)

        def ask() -> int:
            key = chapters_key(camera)
            names: list[bytes] = with_types(self._client, {key: "hash"}, lambda: self._client.hkeys(key))
            removed = 0
            for chapter in {*filter(None, map(text_of, names)), *(fact.name for fact in facts)}:
                removed += int(self._client.delete(scenes_key(camera, chapter)))  # type: ignore[arg-type]
            self._client.delete(key)
            removed += self._landmarks.erase(camera)
            self._write_entries(camera, facts)
            return removed + len(names)

        return self._directory.asking(ask, retry=True)

    def announce(self) -> None:
        """Announce all chapters again, in case Redis has lost its data."""
        facts: dict[str, list[ChapterFacts]] = {camera: [] for camera in self._announced}
        for chapter in self._folder.chapters():
            facts.setdefault(chapter.camera, []).append(chapter)
        for camera in sorted(facts):
            self._announce(camera, facts[camera])

    def _announce(self, camera: str, facts: Sequence[ChapterFacts]) -> None:
        try:
            self._directory.asking(lambda: self._write_entries(camera, facts))
        except DirectoryDownError:
            self.changed(camera)

    def _write_entries(self, camera: str, facts: Sequence[ChapterFacts]) -> None:
        """Write this holder's entries for one camera. Entries of other holders are not changed."""
        kinds: dict[str, Kind] = {chapters_key(camera): "hash"}
        kinds |= {scenes_key(camera, chapter.name): "hash" for chapter in facts}
        with_types(self._client, kinds, lambda: self._write_entries_of_kind(camera, facts))

    def _write_entries_of_kind(self, camera: str, facts: Sequence[ChapterFacts]) -> None:
        key = chapters_key(camera)
        stored: dict[bytes, bytes] = self._client.hgetall(key)  # type: ignore[assignment]
        names = {chapter.name for chapter in facts}
        own = {name for name, value in stored.items() if _holder(value) == self._pod}
        with self._client.pipeline(transaction=False) as pipe:
            for raw in own - {name.encode() for name in names}:
                pipe.hdel(key, raw)
                if (name := text_of(raw)) is not None:
                    pipe.delete(scenes_key(camera, name))
            for chapter in facts:
                pipe.hset(key, chapter.name, _entry(chapter, self._pod))
            if facts:
                pipe.pexpire(key, self._entry_ms)
            pipe.execute()
        dropped = sorted(filter(None, map(text_of, own - {name.encode() for name in names})))
        room = self._budget - self._landmarks.write(camera, facts, dropped, self._budget)
        for chapter in reversed(facts):
            room -= self._write_scenes(camera, chapter, room)
        self._announced.add(camera)
        if not facts:
            self._announced.discard(camera)

    def _write_scenes(self, camera: str, facts: ChapterFacts, room: int) -> int:
        """Write a chapter's scenes to Redis if they take at most `room` bytes; return the bytes they take.

        Only sealed chapters are written: until then, scenes change with every block, so readers get them from
        the holder.
        """
        key = scenes_key(camera, facts.name)
        if not facts.sealed:
            return 0
        try:
            chapter, files = self._folder.read(facts.name)
            head = chapter.head
            size = sum(place.length for place, _ in head.scenes)
            if size > room:
                self._client.delete(key)
                return 0
            if self._client.hget(key, "version") != str(head.version).encode():
                values = files.read([place for place, _ in head.scenes])
                fields: dict[Any, Any] = {str(layer): value for layer, value in enumerate(values)}
                fields["version"] = str(head.version)
                with self._client.pipeline(transaction=False) as pipe:
                    pipe.delete(key)
                    pipe.hset(key, mapping=fields)
                    pipe.pexpire(key, self._entry_ms)
                    pipe.execute()
            else:
                self._client.pexpire(key, self._entry_ms)
        except HistoryError:
            return 0  # gone since it was listed
        except redis.ResponseError as error:
            if is_wrong_type(error):
                raise
            # Redis rejects scenes when it is full; readers then get them from the holder.
            cause = str(error).rpartition(": ")[2]  # the part before it quotes the scenes
            _log.warning("scenes could not be written to Redis", chapter=facts.name, error=cause)
            return 0
        return size

    def _run(self) -> None:
        self.announce()
        while not self._stopped.is_set():
            woken = self._wake.wait(self._round_s)
            self._wake.clear()
            with self._lock:
                cameras, self._changed = self._changed, set()
            if not woken:
                self.announce()
            for camera in sorted(cameras):
                self._announce(camera, self._folder.chapters(camera))
            # Chapters change with every block, so at most one round per second is run.
            self._stopped.wait(1.0)


def _entry(facts: ChapterFacts, pod: str) -> str:
    return json.dumps(
        {
            "pod": pod,
            "epoch": facts.epoch,
            "first_block": facts.first_block,
            "version": facts.version,
            "sealed": facts.sealed,
            "begin_us": facts.begin_us,
            "end_us": facts.end_us,
            "bytes": facts.bytes,
        },
        separators=(",", ":"),
    )


def _holder(value: bytes) -> str:
    try:
        return str(json.loads(value)["pod"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


class ScenesDirectory:
    """Reads chapters' entries from Redis. After a failure, Redis is not called for a while."""

    def __init__(self, directory: Directory, client: redis.Redis) -> None:
        self._directory, self._client = directory, client

    def chapters(self, camera: str) -> dict[str, DirectoryFacts]:
        """Return the facts of a camera's chapters in Redis, by chapter name; empty if Redis does not
        answer."""
        try:
            key = chapters_key(camera)
            stored: dict[Any, Any] = self._directory.asking(
                lambda: with_types(self._client, {key: "hash"}, lambda: dict(self._client.hgetall(key)))
            )
        except DirectoryDownError:
            return {}
        return chapter_facts(stored)

    def scenes(self, camera: str, layers: Mapping[str, Sequence[int]]) -> dict[str, list[bytes | None]]:
        """Read scenes of a camera's chapters in one round trip.

        Args:
            camera: Id of the camera.
            layers: Numbers of the wanted layers, by chapter.

        Returns:
            The scenes of the wanted layers, in the same order, by chapter. None: Redis does not have them.
            The mapping is empty if Redis does not answer. Scenes are untrusted; compare them with the
            checksums in the chapter's head.
        """

        kinds: dict[str, Kind] = {scenes_key(camera, chapter): "hash" for chapter in layers}

        def read() -> list[list[bytes | None]]:
            with self._client.pipeline(transaction=False) as pipe:
                for chapter, numbers in layers.items():
                    pipe.hmget(scenes_key(camera, chapter), list(map(str, numbers)))
                return pipe.execute()

        try:
            values = self._directory.asking(lambda: with_types(self._client, kinds, read)) if layers else []
        except DirectoryDownError:
            return {}
        return dict(zip(layers, values, strict=True))
