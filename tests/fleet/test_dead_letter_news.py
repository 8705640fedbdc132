"""What `lookout up` says of records that could not be processed, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from lookout.cli.connect import client_options
from lookout.cli.dead_letters import DeadLetterNews
from lookout.local.topics import create_topics
from lookout.wire import FRAMES, SEGMENTS, dead_letters, headers
from tests.eventually import eventually


class World:
    """Dead letters of one test's cameras, and who watches them. The clock stands unless a test moves it."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        create_topics(bootstrap, topics=[dead_letters(each) for each in (SEGMENTS, FRAMES)])
        self.prefix, self.now = prefix, 0.0
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self.letters = DeadLetterNews(client_options(bootstrap), clock=lambda: self.now)
        for topic in (SEGMENTS.name, FRAMES.name):  # from here on nothing is missed
            eventually(lambda topic=topic: self.refuse(topic, topic=topic) or self.said(topic))

    def refuse(
        self,
        camera: str,
        reason: str = "unreadable",
        detail: str = "",
        topic: str = SEGMENTS.name,
        records: str = "",
    ) -> None:
        """Write a dead letter; all are in one partition, in order."""
        pairs = [(headers.RECORDS, records.encode())]
        pairs += [(headers.REASON, reason.encode()), (headers.DETAIL, detail.encode())]
        pairs = [each for each in pairs if each[1]]
        self._producer.produce(f"{topic}.dlq", b"bytes", key=self.prefix + camera, headers=pairs, partition=0)
        assert self._producer.flush(30.0) == 0

    def said(self, camera: str) -> list[str]:
        """The next sentences about a camera of this test."""
        return [each for each in self.letters.news() if f"camera {self.prefix}{camera}:" in each]


@pytest.fixture
def world(kafka: str, prefix: str) -> Iterator[World]:
    made = World(kafka, prefix)
    yield made
    made.letters.close()


def test_a_cameras_name_of_two_lines_is_one_line(world: World) -> None:
    world.refuse("gate\n! camera yard", "bad-camera", "is no\ncamera id")
    [sentence] = eventually(lambda: world.said("gate\\x0a! camera yard"))
    assert sentence.endswith("(bad-camera): is no\\x0acamera id")


def test_a_dead_letter_is_a_sentence_with_its_reason(world: World) -> None:
    world.refuse("gate", "unreadable", "no container of a known kind")
    [said] = eventually(lambda: world.said("gate"))
    assert said == (
        f"camera {world.prefix}gate: 1 record went to camera.segments.v1.dlq (unreadable): "
        "no container of a known kind"
    )


def test_letters_of_every_stage_are_told_and_one_without_headers_too(world: World) -> None:
    world.refuse("hall", "", topic=FRAMES.name)
    [said] = eventually(lambda: world.said("hall"))
    assert said == f"camera {world.prefix}hall: 1 record went to frames.v1.dlq (unknown)"


def test_the_same_trouble_is_told_again_after_half_a_minute_with_its_count(world: World) -> None:
    world.refuse("gate")
    eventually(lambda: world.said("gate"))
    for _ in range(3):
        world.refuse("gate")
    world.refuse("roof")  # of another camera: told at once, and so the three were read
    world.refuse("yard")
    heard: list[str] = []
    eventually(lambda: heard.extend(world.letters.news()) or sum(world.prefix in each for each in heard) == 2)
    assert not any(f"{world.prefix}gate" in each for each in heard)
    world.now = 30.0
    assert [each.split(":")[1] for each in world.said("gate")] == [
        " 3 records went to camera.segments.v1.dlq (unreadable)"
    ]
    assert world.said("gate") == []


def test_a_dead_letter_of_the_quota_stands_for_many_records(world: World) -> None:
    world.refuse("yard", "quota", "over", records="700")
    [sentence] = eventually(lambda: world.said("yard"))
    assert f"camera {world.prefix}yard: 700 records went to" in sentence


def test_a_number_of_records_that_came_with_a_record_is_not_believed(world: World) -> None:
    world.refuse("lane", records="900")
    [sentence] = eventually(lambda: world.said("lane"))
    assert f"camera {world.prefix}lane: 1 record went to" in sentence
