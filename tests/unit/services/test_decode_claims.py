"""A camera id belongs to one partition."""

from __future__ import annotations

import pytest

from lookout.runtime import Record
from lookout.wire import SEGMENTS
from tests.unit.services.decode_case import PIECES, START_MS, World


def test_a_camera_id_in_two_partitions_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    for partition in (0, 1, 0, 1):
        record = Record(SEGMENTS.name, partition, 0, "yard", PIECES[0], (), START_MS)
        world.handler.handle(world.handler.load("yard", None), record)
    said = capsys.readouterr().out
    assert said.count("two partitions") == 1
    assert "yard" in said
    assert world.handler.counts["in two partitions"] == 1
