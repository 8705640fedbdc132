"""Which masks hold for a picture: when it was filmed, and when it is shown."""

from __future__ import annotations

import pytest

from lookout.administration.masks import MaskError, next_masks, uncovers
from lookout.rules import RuleError
from lookout.rules.masks import GRACE_US, Masks, read_masks
from lookout.v1.masks_pb2 import CameraMasks
from lookout.v1.watches_pb2 import Point, Zone
from lookout.video.motion.hiding import WHOLE
from lookout.wire import to_json

DAY_US = 86_400_000_000


def zone(*points: tuple[float, float]) -> Zone:
    """A polygon."""
    return Zone(points=[Point(x=x, y=y) for x, y in points])


DOOR = zone((0.1, 0.1), (0.3, 0.1), (0.3, 0.5))
DESK = zone((0.6, 0.1), (0.9, 0.1), (0.9, 0.5))


class Camera:
    """A camera's record as it grows: a version a day."""

    def __init__(self) -> None:
        self.record: CameraMasks | None = None
        self.masks = Masks(lambda _: None if self.record is None else to_json(self.record))

    def write(self, hide: list[Zone], keep: list[Zone] | None = None) -> int:
        """A version; when it begins."""
        self.record = next_masks("gate", self.record, hide, keep or [], "ann")
        since_us = DAY_US * len(self.record.versions)
        self.record.versions[-1].since.FromMicroseconds(since_us)
        return since_us

    def names(self, at_us: int) -> tuple[str, ...]:
        """What a record of footage of a time names, decoded now."""
        return self.masks.filmed("gate", at_us).names


def test_without_masks_nothing_is_hidden() -> None:
    camera = Camera()
    assert camera.masks.filmed("gate", 1).mask is None
    assert camera.masks.shown("gate", ()).mask is None
    assert not camera.masks.lacks("gate", ())


def test_a_new_mask_hides_older_footage_too_and_what_was_computed_without_it_is_not_used() -> None:
    camera = Camera()
    before = camera.names(5)
    since_us = camera.write([DOOR])
    assert camera.masks.shown("gate", before).mask is not None
    assert camera.masks.again("gate", before) is None
    assert camera.masks.lacks("gate", before)
    assert camera.masks.since_us("gate") == since_us
    names = camera.names(since_us + 1)
    again = camera.masks.again("gate", names)
    assert again is not None
    assert again == camera.masks.shown("gate", names) == camera.masks.filmed("gate", since_us + 1)


def test_a_lifted_mask_still_hides_what_was_filmed_under_it() -> None:
    camera = Camera()
    camera.write([DOOR])
    names = camera.names(DAY_US + 1)
    lifted_us = camera.write([])
    assert camera.masks.shown("gate", names).names == names
    assert camera.names(DAY_US + 1) == names  # decoded late
    assert camera.names(lifted_us + GRACE_US - 1) == names
    assert camera.names(lifted_us + GRACE_US) == ()
    assert camera.masks.again("gate", names) is not None
    assert camera.masks.since_us("gate") == 0


def test_a_polygon_that_stays_is_not_new() -> None:
    camera = Camera()
    first_us = camera.write([DOOR, DESK])
    names = camera.names(first_us)
    camera.write([DOOR])
    assert not camera.masks.lacks("gate", names)
    assert camera.masks.since_us("gate") == first_us
    added_us = camera.write([DOOR], [zone((0, 0), (1, 0), (1, 1))])
    assert camera.masks.lacks("gate", names)
    assert camera.masks.since_us("gate") == added_us


def test_masks_that_are_not_known_any_more_hide_everything() -> None:
    camera = Camera()
    camera.write([DOOR])
    shown = camera.masks.shown("gate", ["0123456789abcdef"])
    assert shown.mask is not None
    assert WHOLE in shown.mask.layers
    assert camera.masks.again("gate", ["0123456789abcdef", *camera.names(DAY_US)]) is None
    assert camera.record is not None
    for number in range(2, 102):
        camera.record.versions.add(version=number, hide=[DESK]).since.FromMicroseconds(number * DAY_US)
    camera.record = next_masks("gate", camera.record, [DESK], [], "ann")
    assert len(camera.record.versions) == 100
    assert camera.record.versions[0].version == 3
    old = camera.masks.filmed("gate", 1)
    assert old.mask is not None
    assert WHOLE in old.mask.layers
    again = camera.masks.shown("gate", old.names).mask
    assert again is not None
    assert WHOLE in again.layers


def test_only_what_adds_uncovers_nothing() -> None:
    keep = zone((0, 0), (1, 0), (1, 1))
    steps = [
        (([DOOR], []), ([DOOR, DESK], []), False),
        (([DOOR], []), ([DOOR], [keep]), False),
        (([DOOR], [keep, DESK]), ([DOOR], [keep]), False),
        (([DOOR, DESK], []), ([DOOR], []), True),
        (([DOOR], []), ([], []), True),
        (([], [keep]), ([], []), True),
        (([], [keep]), ([], [keep, DESK]), True),
        (([], []), ([], []), False),
    ]
    for (hide, keep_before), (hide_after, keep_after), expected in steps:
        before = next_masks("gate", None, hide, keep_before, "ann")
        after = next_masks("gate", before, hide_after, keep_after, "ann")
        assert uncovers(before, after) == expected
    assert not uncovers(None, next_masks("gate", None, [], [], "ann"))


@pytest.mark.parametrize(
    ("hide", "why"),
    [
        ([zone((0.1, 0.1), (0.2, 0.2))], r"hide\[0\]: a polygon needs at least three different points"),
        ([DOOR, zone((0, 0), (2, 0), (1, 1))], r"Point\.x"),
        ([zone((0, 0), (float("nan"), 0), (1, 1))], r"Point\.x"),
        ([DOOR] * 21, "hide"),
        ([zone(*((place / 200, place**2 / 40_000) for place in range(101)))], "points"),
    ],
)
def test_what_is_no_mask_is_rejected_with_its_reason(hide: list[Zone], why: str) -> None:
    with pytest.raises(MaskError, match=why):
        next_masks("gate", None, hide, [], "ann")


def test_records_that_cannot_be_applied_are_rejected() -> None:
    masks = next_masks("gate", None, [DOOR], [], "ann")
    assert read_masks("gate", to_json(masks)) == masks
    with pytest.raises(RuleError, match="key must be"):
        read_masks("yard", to_json(masks))
    masks.versions[0].version = 0
    with pytest.raises(RuleError, match="version 0"):
        read_masks("gate", to_json(masks))
    with pytest.raises(RuleError, match="versions"):
        read_masks("gate", b'{"camera": "gate"}')
    with pytest.raises(RuleError):
        read_masks("gate", b"[")
