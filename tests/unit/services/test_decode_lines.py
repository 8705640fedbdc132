"""Two cameras under one id, and what only looks like that."""

from __future__ import annotations

import random

import pytest

from lookout.services.decode.lines import TimeLines
from lookout.v1.lineage_pb2 import CAUSE_TWO_CAMERAS, StreamEvent
from tests.streams import segments
from tests.unit.services.decode_case import World, pieces

S = 1_000_000


def line(origin_s: float, count: int, camera: int = 0) -> list[tuple[int, int, int]]:
    return [
        (round((origin_s + 2 * k) * S), round((origin_s + 2 * k + 2) * S), 10_000 * (camera + 1) + k)
        for k in range(count)
    ]


def turns(*lines: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    return [segment for group in zip(*lines, strict=True) for segment in group]


@pytest.mark.parametrize("offset_s", [0, 0.5, 1.2, 1000, -1000])
def test_two_lines_in_turns_are_two_cameras(offset_s: float) -> None:
    lines = TimeLines()
    two = [lines.take(*segment) for segment in turns(line(10, 8), line(10 + offset_s, 8, camera=1))]
    assert all(two[6:])


def test_one_camera_is_never_two() -> None:
    whole = line(0, 24)
    swapped = [segment for k in range(0, 24, 2) for segment in (whole[k + 1], whole[k])]
    draw = random.Random(1)
    streams = {
        "in order": whole,
        "sent twice": [segment for segment in whole for _ in range(2)],
        "swapped pairs": swapped,
        "clock set back again and again": line(0, 2) * 9,
        "segments lost": [segment for segment in whole if draw.random() < 0.5],
        "the last ones once more after a reconnect": [*whole[:8], *whole[4:16], *whole[12:]],
    }
    for name, stream in streams.items():
        lines = TimeLines()
        assert not any(lines.take(*segment) for segment in stream), name


@pytest.mark.slow
def test_cameras_that_share_an_id_are_named_and_never_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    """Their clocks are equal, so that each segment nearly continues the other camera's."""
    other = segments(seed=5)
    world = World()
    records = [
        record
        for pair in zip(pieces(), other, strict=False)
        for piece in pair
        for record in world.send(piece, 1000)
    ]
    gaps = [record.event for record in records if record.event.kind == StreamEvent.KIND_GAP]
    assert {gap.reason for gap in gaps[-2:]} == {"two-cameras"}
    assert gaps[-1].cause == CAUSE_TWO_CAMERAS
    assert world.counts["two_cameras"] == 3
    warning = capsys.readouterr().out
    assert warning.count("two cameras send under the same id") == 1
    assert "yard" in warning
