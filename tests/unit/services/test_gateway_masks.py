"""Masks in the gateway's history: what the fleet signed holds, and is written again where it was replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lookout.administration.masks import next_masks
from lookout.runtime.store.mask_signing import MaskSigner, SignedMasks
from lookout.services.gateway.history.records import Records
from lookout.services.gateway.masks import MaskKeeper
from lookout.services.gateway.parts import Parts, make_parts
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.masks_pb2 import CameraMasks
from lookout.v1.watches_pb2 import Point, Zone
from lookout.wire import MASKS, to_json
from tests.unit.services.test_gateway_history import FakeMessage

DOOR = Zone(name="door", points=[Point(x=x, y=y) for x, y in ((0.1, 0.1), (0.3, 0.1), (0.3, 0.5))])


class Gateway:
    """A gateway with a history, without Kafka: what it publishes is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.published, self._offset = folder, list[tuple[str, bytes]](), 0
        self.token = folder / "token"
        self.token.write_text("a" * 32)
        self.parts = self.restarted()

    def restarted(self) -> Parts:
        """Its parts, made from what is on the disk."""
        values = {
            "mode": "local",
            "bootstrap": "127.0.0.1:1",
            "database_url": f"sqlite:///{self._folder}/history.db",
            "grpc_token_file": self.token,
        }
        self.parts = make_parts(GatewaySettings.model_validate(values))
        self.parts.writes.publish = lambda _topic, key, value, _headers: self.published.append((key, value))  # type: ignore[method-assign]
        return self.parts

    def read(self, value: bytes | None, *, key: str = "gate") -> None:
        """The history takes a record."""
        self._offset += 1
        records = Records(self.parts.database, MaskSigner.of(self.parts.settings))
        with self.parts.database.writing() as connection:
            batch = records.begin(connection)
            records.take(batch, FakeMessage(MASKS.name, 0, self._offset, key.encode(), value))  # type: ignore[arg-type]
            records.end(batch)

    def hides(self) -> bool:
        """Whether pictures of the camera are masked."""
        return self.parts.media._masks.shown("gate", ()).mask is not None

    def written_again(self) -> list[tuple[str, bytes]]:
        """What the keeper writes now."""
        self.published.clear()
        MaskKeeper(self.parts).write()
        return list(self.published)

    def signed(self, before: CameraMasks | None, hide: list[Zone]) -> CameraMasks:
        """A version that the fleet signs."""
        masks = next_masks("gate", before, hide, [], "ann")
        MaskSigner.of(self.parts.settings).sign(masks)
        return masks


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(tmp_path)
    yield made
    made.parts.database.close()


@pytest.mark.parametrize("kind", ["null", "unsigned", "replayed"])
def test_what_nobody_signed_lifts_nothing_and_the_mask_is_written_again(gateway: Gateway, kind: str) -> None:
    lifted = gateway.signed(None, [])
    masks = gateway.signed(lifted, [DOOR])
    gateway.read(to_json(masks))
    assert gateway.written_again() == []
    bad = {
        "null": None,
        "unsigned": to_json(next_masks("gate", masks, [], [], "eve")),
        "replayed": to_json(lifted),
    }
    gateway.read(bad[kind])
    assert gateway.hides()
    gateway.parts.database.close()
    gateway.restarted()
    assert gateway.hides()
    assert gateway.written_again() == [("gate", to_json(masks))]
    gateway.read(to_json(masks))
    assert gateway.written_again() == []
    gateway.read(to_json(gateway.signed(masks, [])))
    assert not gateway.hides(), "a signed version without polygons lifts it"


def test_masks_of_an_old_token_are_signed_with_the_new_one(gateway: Gateway) -> None:
    gateway.read(to_json(gateway.signed(None, [DOOR])))
    gateway.token.write_text("b" * 32)
    gateway.parts.database.close()
    gateway.restarted()
    ((key, value),) = gateway.written_again()
    known = SignedMasks(MaskSigner.of(gateway.parts.settings))
    assert known.take(key, value) is None
    assert [zone.name for zone in known.cameras["gate"].versions[-1].hide] == ["door"]
    assert gateway.hides()


def test_a_forged_mask_of_a_camera_without_one_hides_nothing(gateway: Gateway) -> None:
    gateway.read(to_json(next_masks("gate", None, [DOOR], [], "eve")))
    assert not gateway.hides()
    assert gateway.written_again() == []
