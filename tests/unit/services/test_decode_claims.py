"""A camera id belongs to one partition."""

from __future__ import annotations

import pytest

from lookout.runtime.worker import Record
from lookout.services.decode.claims import Claims
from lookout.wire import SEGMENTS
from tests.unit.services.decode_case import START_MS, World, pieces


def test_a_camera_id_in_two_partitions_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    for partition in (0, 1, 0, 1):
        record = Record(SEGMENTS.name, partition, 0, "yard", pieces()[0], (), START_MS)
        world.take(world.handler.handle(world.handler.load("yard", None), record))
    said = capsys.readouterr().out
    assert said.count("two partitions") == 1
    assert "yard" in said
    assert world.counts["in_two_partitions"] == 1
    assert world.counts["segments"] == 4


def test_a_second_partition_is_named_once_until_the_claim_expires() -> None:
    now = 0.0
    claims = Claims(60.0, lambda: now)
    assert [claims.take("yard", partition) for partition in (0, 0, 1, 0, 1)] == [None, None, 0, None, None]
    now = 130.0
    assert claims.take("yard", 0) is None
    assert claims.take("yard", 1) == 0


def test_invented_ids_are_dropped_when_their_claims_expire() -> None:
    now = 0.0
    claims = Claims(60.0, lambda: now)
    for number in range(10_000):
        now += 1.0
        claims.take(f"cam-{number}", 0)
    assert len(claims._claims) <= 121


def test_claims_leave_with_their_partition() -> None:
    claims = Claims(60.0, lambda: 0.0)
    claims.take("yard", 0)
    claims.release(0)
    assert claims.take("yard", 1) is None
