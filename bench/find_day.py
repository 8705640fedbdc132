"""Ranks a day of a thousand cameras as recall does: from a real Redis, by the landmarks of `bench.find`.

The cameras' landmarks are repeated until each camera has the desired number of hours. Bytes and time do not
depend on what the cameras show.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
import redis

from lookout.local import RedisServer
from lookout.models import DEMO_QUESTIONS
from lookout.models.engines.transformers.memory.queries import question_queries
from lookout.past.chapters.directory_keys import chapters_key
from lookout.past.chapters.landmarks import CAMERAS, LandmarkReader, landmarks_key
from lookout.past.find.spans import ranked_spans
from lookout.past.memory.ranking import CameraPast, Landmarks
from lookout.runtime.store.directory import Directory
from tests.find_world import START_US, digest, engine, settings

CHAPTER_US: Final = 600_000_000
"""How long a chapter is when it is sealed."""
FIRST: Final = 1024
"""Spans that are taken: more than a person waits for."""


def of_a_day(pasts: Mapping[str, CameraPast], cameras: int = 1000, hours: int = 24) -> dict[str, Any]:
    """What a day takes: milliseconds on the clock, bytes in Redis and in recall.

    Args:
        pasts: By camera, whose landmarks are repeated.
        cameras: That Redis is told of.
        hours: Of each.
    """
    with RedisServer(max_memory_mb=4096) as server:
        client = redis.Redis.from_url(server.url)
        empty = client.info("memory")["used_memory"]
        held = _fill(client, pasts, cameras, hours * 3_600_000_000 // CHAPTER_US)
        used = client.info("memory")["used_memory"] - empty
        directory = Directory(server.url, settings().store)
        reader = LandmarkReader(directory, client, digest())
        begun = time.perf_counter()
        reader.pasts(["*"])
        read_s = time.perf_counter() - begun
        listing, ranking = [], []
        for number, question in enumerate([*DEMO_QUESTIONS.values()][:5], 1):
            _grow(client, cameras, number)
            begun = time.perf_counter()
            remembered = reader.pasts(["*"])
            listed = time.perf_counter()
            assert remembered.space is not None
            queries = remembered.space.queries(question_queries(engine(), question))
            asked = time.perf_counter()
            spans = ranked_spans(remembered.cameras, queries, settings().window_us)
            spans.part(0, FIRST)
            ranking.append(time.perf_counter() - asked)
            listing.append(listed - begun)
        return {
            "rank_ms": round(1000 * float(np.median(ranking)), 1),
            "list_s": round(float(np.median(listing)), 2),
            "read_s": round(read_s, 1),
            "cameras": cameras,
            "hours": hours,
            "spans": len(spans),
            "landmark_bytes": held,
            "redis_bytes": used,
            "recall_bytes": sum(
                mark.nbytes for past in remembered.cameras.values() for mark in past.landmarks
            ),
        }


def _fill(client: redis.Redis, pasts: Mapping[str, CameraPast], cameras: int, chapters: int) -> int:
    """Write the landmarks of chapters one after the other; returns the bytes of all."""
    films = [_chapter(past) for past in pasts.values()]
    held = 0
    for number in range(cameras):
        name = f"camera-{number}"
        facts: dict[Any, Any] = {}
        marks: dict[Any, Any] = {}
        for place, film in enumerate(islice(cycle(films), number, number + chapters)):
            begin_us = START_US + place * CHAPTER_US
            own = replace(film, begin_us=film.begin_us + begin_us, end_us=film.end_us + begin_us)
            chapter = f"{number}-{place:06}-0a1b2c3d"
            marks[f"{chapter}@1"] = own.packed()
            facts[chapter] = json.dumps(
                {
                    "pod": "prefill-0",
                    "epoch": 1,
                    "first_block": 300 * place,
                    "version": 1,
                    "sealed": True,
                    "begin_us": begin_us,
                    "end_us": begin_us + CHAPTER_US - 1,
                    "bytes": 1,
                }
            )
        held += sum(map(len, marks.values()))
        with client.pipeline(transaction=False) as pipe:
            pipe.hset(landmarks_key(name), mapping=marks)
            pipe.hset(chapters_key(name), mapping=facts)
            pipe.zadd(CAMERAS, {name: time.time()})
            pipe.execute()
    return held


def _grow(client: redis.Redis, cameras: int, version: int) -> None:
    """Write the newest chapter of every camera again, as if all went on filming since the last search."""
    for number in range(cameras):
        facts, marks = (key(f"camera-{number}") for key in (chapters_key, landmarks_key))
        chapters: list[bytes] = client.hkeys(facts)  # type: ignore[assignment]
        newest = max(chapters).decode()
        earlier = f"{newest}@{version}"
        own = json.loads(client.hget(facts, newest)) | {"version": version + 1}  # type: ignore[arg-type]
        client.hset(facts, newest, json.dumps(own))
        client.hset(marks, f"{newest}@{version + 1}", client.hget(marks, earlier))  # type: ignore[arg-type]
        client.hdel(marks, earlier)


def _chapter(past: CameraPast) -> Landmarks:
    """A film's landmarks again and again, until they are as long as a chapter; they begin at 0."""
    marks = past.landmarks
    begin_us, end_us = past.chapters[0][0], max(int(mark.end_us.max()) for mark in marks)
    times = [number * (end_us - begin_us + 1) for number in range(2)]
    keys = np.concatenate([mark.keys for _ in times for mark in marks], 1)
    begin = np.concatenate([mark.begin_us - begin_us + by for by in times for mark in marks])
    end = np.concatenate([mark.end_us - begin_us + by for by in times for mark in marks])
    tokens = np.concatenate([mark.tokens for _ in times for mark in marks])
    inside = np.flatnonzero(end < CHAPTER_US)
    order = inside[np.argsort(begin[inside], kind="stable")]
    return replace(
        marks[0], keys=keys[:, order], begin_us=begin[order], end_us=end[order], tokens=tokens[order]
    )
