"""Masks that the fleet signs: what others write changes and lifts none."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from lookout.administration.masks import next_masks
from lookout.rules.masks import Masks
from lookout.runtime.net import GrpcSecurity
from lookout.runtime.store.mask_signing import DELETED, MaskSigner, SignedMasks
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.tables import Table
from lookout.v1.masks_pb2 import CameraMasks
from lookout.v1.watches_pb2 import Point, Zone
from lookout.wire import to_json

DOOR = Zone(name="door", points=[Point(x=x, y=y) for x, y in ((0.1, 0.1), (0.3, 0.1), (0.3, 0.5))])
DESK = Zone(name="desk", points=[Point(x=x, y=y) for x, y in ((0.6, 0.1), (0.9, 0.1), (0.9, 0.5))])


def signer_of(letter: str) -> MaskSigner:
    """The signer of a fleet with a token."""
    return MaskSigner.of(GrpcSecurity(grpc_token=SecretStr(letter * 32)))


OURS, OTHERS, NOBODYS = signer_of("a"), signer_of("b"), MaskSigner(None)


def written(before: CameraMasks | None, hide: list[Zone], signer: MaskSigner = OURS) -> CameraMasks:
    """The next version of a camera's masks."""
    masks = next_masks("gate", before, hide, [], "ann")
    signer.sign(masks)
    return masks


class Topic:
    """A fake of the compacted topic: the newest record of the camera, and the table of a service."""

    def __init__(self, signer: MaskSigner = OURS) -> None:
        self._signer, self._offset = signer, 0
        self.restart()

    def restart(self) -> None:
        """A service starts."""
        self.signed = SignedMasks(self._signer)
        settings = ServiceSettings(mode="local", instance="one")
        self.table: Any = Table(settings, "masks.v1", check=self.signed.take, deletion_fault=DELETED)
        self.masks = Masks(self.signed.newest)

    def write(self, value: bytes | None) -> None:
        """A record comes."""
        self._offset += 1
        self.table._put(FakeMessage(self._offset, value))

    @property
    def hides(self) -> list[str]:
        """Names of the polygons in force."""
        masks = self.signed.cameras.get("gate")
        return [] if masks is None else [zone.name for zone in masks.versions[-1].hide]


class FakeMessage:
    """A fake of a record as the Kafka client gives it."""

    def __init__(self, offset: int, value: bytes | None) -> None:
        self._offset, self._value = offset, value

    def key(self) -> bytes:
        return b"gate"

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset


DOORS = written(None, [DOOR])
BOTH = written(DOORS, [DOOR, DESK])
LIFTED = written(BOTH, [])
FORGED = next_masks("gate", BOTH, [], [], "eve")
FORGED.signature = BOTH.signature


def test_signed_masks_hold_and_are_lifted_by_a_signed_version_without_polygons() -> None:
    topic = Topic()
    for masks, hidden in ((DOORS, ["door"]), (BOTH, ["door", "desk"]), (LIFTED, [])):
        topic.write(to_json(masks))
        assert topic.hides == hidden
        assert topic.table.left_out().rows == 0
    assert topic.masks.shown("gate", ()).mask is None


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (None, "deleting"),
        (to_json(FORGED), "did not sign"),
        (to_json(written(BOTH, [], OTHERS)), "did not sign"),
        (to_json(written(BOTH, [], NOBODYS)), "did not sign"),
        (to_json(DOORS), "older"),
        (b"{", "JSON"),
    ],
    ids=["null", "signature of the one before", "another token", "unsigned", "replayed", "noise"],
)
def test_what_nobody_signed_changes_nothing_and_is_counted(record: bytes | None, why: str) -> None:
    topic = Topic()
    topic.write(to_json(BOTH))
    topic.write(record)
    assert topic.hides == ["door", "desk"]
    assert topic.masks.filmed("gate", 1).mask is not None
    assert why in topic.table.left_out().reasons["gate"]
    topic.restart()
    topic.write(to_json(BOTH))
    topic.write(record)
    assert topic.hides == ["door", "desk"], "the same after a restart"
    topic.write(to_json(LIFTED))
    assert topic.hides == []
    assert topic.table.left_out().rows == 0


def test_an_older_mask_does_not_come_back_where_versions_begin_again() -> None:
    topic = Topic()
    again = written(None, [DESK])  # the record before was lost
    topic.write(to_json(again))
    topic.write(to_json(BOTH))  # version 2, signed, and written earlier
    assert topic.hides == ["desk"]
    assert "older" in topic.table.left_out().reasons["gate"]
    topic.write(to_json(written(again, [])))
    assert topic.hides == []


def test_the_next_mask_is_newer_whatever_the_clock_of_its_writer() -> None:
    before = next_masks("gate", None, [DOOR], [], "eve")
    before.versions[0].since.FromMilliseconds(before.versions[0].since.ToMilliseconds() + 3_600_000)
    after = next_masks("gate", before, [], [], "eve")
    assert after.versions[1].since.ToNanoseconds() > before.versions[0].since.ToNanoseconds()


@pytest.mark.parametrize("field", ["camera", "by", "since", "hide", "keep", "version", "point", "name"])
def test_the_signature_is_over_everything(field: str) -> None:
    masks = CameraMasks()
    masks.CopyFrom(DOORS)
    version = masks.versions[0]
    match field:
        case "camera":
            masks.camera = "yard"
        case "by":
            version.by = "eve"
        case "since":
            version.since.nanos += 1
        case "hide":
            version.hide.add().CopyFrom(DESK)
        case "keep":
            version.keep.extend(version.hide)
            del version.hide[:]
        case "version":
            version.version += 1
        case "point":
            version.hide[0].points[0].x += 1e-9
        case _:
            version.hide[0].name = ""
    assert OURS.check(DOORS)
    assert not OURS.check(masks)


def test_masks_that_begin_again_with_a_later_version_1_count() -> None:
    """Somebody whose topic had lost its record writes version 1 again."""
    topic = Topic()
    topic.write(to_json(BOTH))
    topic.write(to_json(written(None, [DESK])))
    assert topic.hides == ["desk"]


def test_without_a_token_all_masks_count_and_a_null_record_lifts_none() -> None:
    topic = Topic(NOBODYS)
    topic.write(to_json(BOTH))
    topic.write(None)
    assert topic.hides == ["door", "desk"]
    topic.write(to_json(next_masks("gate", None, [DOOR], [], "ann")))
    assert topic.hides == ["door"]
