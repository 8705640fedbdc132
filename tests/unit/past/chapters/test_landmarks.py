"""What a reader of landmarks keeps between searches is what Redis has at that moment."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings, strategies as st

from lookout.local import RedisServer
from lookout.past.chapters.directory_keys import chapter_facts, chapters_key
from lookout.past.chapters.landmarks import CAMERAS, LandmarkReader, landmarks_key
from lookout.past.memory.ranking import CameraPast, Landmarks
from lookout.runtime.store import Directory, StoreSettings

SECOND_US = 1_000_000
NAMES = ("gate", "yard")
WAYS = ("grow", "seal", "leave", "erase", "expire", "lose landmarks", "wipe", "fall back", "stranger", "type")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.close()


class Writer:
    """Writes chapters as holders do, and loses them in every way that Redis and others know."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.tokens = client, 0
        self.older: dict[bytes, bytes] = {}

    def do(self, way: str, camera: str, number: int) -> None:
        chapters, marks = chapters_key(camera), landmarks_key(camera)
        name = f"{number}-a"
        if way in ("grow", "seal"):
            self.chapter(camera, number, sealed=way == "seal")
        elif way == "leave":
            self.client.hdel(chapters, name)
            self.client.hdel(marks, *self.versions(camera, name) or [b"none"])
        elif way == "erase":
            self.client.zrem(CAMERAS, camera)
            self.client.delete(chapters, marks)
        elif way == "expire":
            self.client.delete(chapters)
        elif way == "lose landmarks":
            self.client.delete(marks)
        elif way == "wipe":
            self.client.flushall()
        elif way == "fall back":  # a replica that lags becomes the primary
            self.client.flushall()
            for key, value in self.older.items():
                self.client.restore(key, 0, value)
        elif way == "stranger":
            self.client.hset(chapters, b"\xff\n", b'{"pod":"p","begin_us":1,"end_us":2}')
            self.client.hset(chapters, "\n\0", b'{"pod":"\xff","begin_us":1,"end_us":2}')
            self.client.hset(marks, b"\xff\n", b"nothing of ours")
        else:
            self.client.set(chapters if number % 2 else marks, "text")
        if number == 0:
            keys: list[bytes] = self.client.keys()  # type: ignore[assignment]
            self.older = {key: self.client.dump(key) for key in keys}  # type: ignore[misc]

    def versions(self, camera: str, name: str) -> list[bytes]:
        fields: list[bytes] = self.client.hkeys(landmarks_key(camera))  # type: ignore[assignment]
        return [field for field in fields if field.startswith(f"{name}@".encode())]

    def chapter(self, camera: str, number: int, *, sealed: bool) -> None:
        for key in (chapters_key(camera), landmarks_key(camera)):
            if self.client.type(key) == b"string":
                self.client.delete(key)
        self.tokens += 1  # no two versions say the same
        begin_us = number * 60 * SECOND_US
        end_us = begin_us + self.tokens
        facts = {"pod": "prefill-0", "sealed": sealed, "begin_us": begin_us, "end_us": end_us}
        name = f"{number}-a"
        earlier = self.versions(camera, name)
        times = np.array([begin_us, begin_us + self.tokens // 2])
        keys = np.full((2, 2, 8), self.tokens, np.float16)
        tokens = np.full(2, self.tokens)
        marks = Landmarks(keys, np.array([1, 2]), times, times + 1, tokens, self.tokens, "m")
        self.client.hset(chapters_key(camera), name, json.dumps(facts))
        self.client.hset(landmarks_key(camera), f"{name}@{self.tokens}", marks.packed())  # type: ignore[arg-type]
        if earlier:
            self.client.hdel(landmarks_key(camera), *earlier)  # type: ignore[arg-type]
        self.client.zadd(CAMERAS, {camera: self.tokens})


Shown = dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]]


def shown(pasts: dict[str, CameraPast]) -> Shown:
    """Chapters, and begin and tokens of the clusters, by camera."""
    return {
        camera: (
            past.chapters,
            sorted(
                pair
                for own in past.landmarks
                for pair in zip(own.begin_us.tolist(), own.tokens.tolist(), strict=True)
            ),
        )
        for camera, past in pasts.items()
    }


def listed(client: redis.Redis) -> Shown:
    """The same by asking Redis for everything, one key after the other."""
    out: Shown = {}
    cameras: list[bytes] = client.zrange(CAMERAS, 0, -1)  # type: ignore[assignment]
    for camera in map(bytes.decode, cameras):
        kinds = client.type(chapters_key(camera)), client.type(landmarks_key(camera))
        stored = client.hgetall(chapters_key(camera)) if kinds[0] == b"hash" else {}
        times = sorted((own["begin_us"], own["end_us"]) for own in chapter_facts(stored).values())  # type: ignore[arg-type]
        values: list[bytes] = client.hvals(landmarks_key(camera)) if kinds[1] == b"hash" else []  # type: ignore[assignment]
        marks = [Landmarks.unpacked(value, "here") for value in values if value != b"nothing of ours"]
        if times:
            clusters = [pair for own in marks for pair in zip(own.begin_us, own.tokens, strict=True)]
            out[camera] = times, sorted((int(begin), int(tokens)) for begin, tokens in clusters)
    return out


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("grow", "seal", *WAYS)), st.sampled_from(NAMES), st.integers(0, 3)),
        max_size=25,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_reader_keeps_is_what_redis_has(
    client: redis.Redis, redis_server: RedisServer, steps: list[tuple[str, str, int]]
) -> None:
    client.flushall()
    writer = Writer(client)
    reader = LandmarkReader(Directory(redis_server.url, StoreSettings()), client, "m")
    for way, camera, number in steps:
        writer.do(way, camera, number)
        expected = listed(client)
        assert shown(reader.pasts(["*"]).cameras) == expected, (way, camera, number)


@pytest.mark.slow
def test_only_what_changed_is_read_again(
    client: redis.Redis, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(client)
    for camera in NAMES:
        for number in range(4):
            writer.chapter(camera, number, sealed=number < 3)
    parsed: list[str] = []
    unpacked = Landmarks.unpacked

    def counted(data: bytes, where: str) -> Landmarks:
        parsed.append(where)
        return unpacked(data, where)

    monkeypatch.setattr(Landmarks, "unpacked", counted)
    reader = LandmarkReader(Directory(redis_server.url, StoreSettings()), client, "m")
    first = reader.pasts(["*"]).cameras
    assert len(parsed) == 8
    again = reader.pasts(["*"]).cameras
    assert all(again[camera] is first[camera] for camera in NAMES)
    writer.chapter("gate", 3, sealed=False)
    grown = reader.pasts(["*"]).cameras
    assert grown["yard"] is first["yard"]
    assert len(parsed) == 9
    assert shown(grown) == listed(client)
    reader.forget("yard")
    assert reader.pasts(["*"]).cameras["yard"] is not first["yard"]
    ahead = LandmarkReader(Directory(redis_server.url, StoreSettings()), client, "m")
    ahead.read_ahead()
    parsed.clear()
    found = ahead.pasts(["*"]).cameras
    assert not parsed
    assert shown(found) == listed(client)


@pytest.mark.slow
def test_a_camera_that_is_evicted_keeps_its_chapters(
    client: redis.Redis, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookout.past.chapters.landmarks.CACHE_BYTES", 0)
    writer = Writer(client)
    for camera in NAMES:
        writer.chapter(camera, 1, sealed=True)
    reader = LandmarkReader(Directory(redis_server.url, StoreSettings()), client, "m")
    for _ in range(2):
        pasts = reader.pasts(["*"]).cameras
        assert {camera: past.chapters for camera, past in pasts.items()} == {
            camera: times for camera, (times, _) in listed(client).items()
        }
        assert not any(past.landmarks for past in pasts.values())
