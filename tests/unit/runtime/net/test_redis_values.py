"""What others wrote into Redis counts as absent where it is not what a key should hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from lookout.local import RedisServer
from lookout.past.chapters import ChapterAnnouncer
from lookout.past.chapters.announcing import ScenesDirectory, scenes_key
from lookout.past.chapters.directory_keys import chapters_key
from lookout.runtime.net.redis_values import number_of, text_of, with_types
from lookout.runtime.store import Announcer, Directory, StoreSettings
from lookout.runtime.tenants.counters import RedisCounters
from lookout.runtime.tenants.fleet import RedisWork
from lookout.services.camera_agent.leases import AGENTS, Leases
from lookout.v1.lineage_pb2 import STAGE_FRAMES
from tests.chapters_world import fill, folder


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.close()


def test_a_key_of_another_type_is_removed_and_asked_again(client: redis.Redis) -> None:
    client.set("key", "text")
    assert with_types(client, {"key": "hash"}, lambda: client.hgetall("key")) == {}
    assert client.hset("key", "field", "1") == 1
    assert [number_of(text) for text in (b"1.5", b"nan", b"x", b"1e999")] == [1.5, None, None, None]
    assert [text_of(text) for text in (b"a", b"\xff")] == ["a", None]


@pytest.mark.parametrize("what", ["wrong type", "not UTF-8"])
def test_chapters_are_announced_and_erased_whatever_stands_there(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, what: str
) -> None:
    chapters = folder(tmp_path)
    fill(chapters, range(3))
    facts = chapters.seal("gate")
    assert facts is not None
    directory = Directory(redis_server.url, StoreSettings())
    announcer = ChapterAnnouncer(directory, client, chapters, "prefill-0")

    def spoil() -> None:
        for key in (chapters_key("gate"), scenes_key("gate", facts.name)):
            client.delete(key)
            if what == "wrong type":
                client.set(key, "text")
            else:
                client.hset(key, b"\xff\xfe", b'{"pod":"prefill-0"}')

    reader = ScenesDirectory(directory, client)
    spoil()
    assert reader.chapters("gate") == {}
    assert reader.scenes("gate", {facts.name: [0]}) == {facts.name: [None]}
    spoil()
    announcer.announce()
    assert set(reader.chapters("gate")) == {facts.name}
    spoil()
    announcer.erase("gate")
    assert set(reader.chapters("gate")) == {facts.name}
    announcer.stop()
    assert reader.chapters("gate") == {}
    directory.close()


def test_a_lease_is_kept_where_names_are_not_utf8(client: redis.Redis, redis_server: RedisServer) -> None:
    directory = Directory(redis_server.url, StoreSettings())
    announcer = Announcer(directory, STAGE_FRAMES, "decode-0", "127.0.0.1:9", list)
    assert announcer.renew()
    (roster,) = client.keys("*:roster")
    client.hset(roster, b"\xff\xfe", b"\xff")
    assert directory.replicas(STAGE_FRAMES) == ["127.0.0.1:9"]
    directory.close()


def test_agents_and_tenants_go_on_where_a_key_is_of_another_type(client: redis.Redis) -> None:
    client.set(AGENTS, "text")
    leases = Leases(client, "agent-0", 30.0)
    leases.add("gate")
    assert leases.refresh() == {"gate"}
    client.zadd(AGENTS, {b"\xff": 1e12})
    assert leases.refresh() == {"gate"}
    used = RedisCounters(client)
    used.exchange(1, 60.0, {("ours", "bytes"): 5.0})
    (key,) = client.keys("*:used:1")
    client.hset(key, b"\xff:x", "1")
    client.hset(key, "bytes:theirs", "-1e300")
    assert used.exchange(1, 60.0, {("ours", "bytes"): 5.0}) == {
        ("ours", "bytes"): 10.0,
        ("theirs", "bytes"): 0.0,
    }
    client.set(key, "text")
    assert used.exchange(1, 60.0, {("ours", "bytes"): 5.0}) == {("ours", "bytes"): 5.0}
    work = RedisWork(client, clock=lambda: 1000.0)
    work.exchange({"ours": 1.0})
    (key,) = client.keys("*:device:*")
    client.hset(key, mapping={"theirs": "1e300", "others": "nan", b"\xff": "1"})
    assert work.exchange({"ours": 1.0}) == pytest.approx({"ours": 2.0})
    client.set(key, "text")
    assert work.exchange({"ours": 1.0}) == pytest.approx({"ours": 1.0})
