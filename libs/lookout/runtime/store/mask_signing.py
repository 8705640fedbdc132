"""Signatures on records of `masks.v1`, so that only the fleet can change or lift a privacy mask."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from lookout.rules import RuleError
from lookout.rules.masks import read_masks
from lookout.runtime.store.signing import FleetSigner
from lookout.v1.masks_pb2 import CameraMasks
from lookout.v1.watches_pb2 import Zone

_KEPT: Final = "the previous mask stays in force"
#: why a record of `masks.v1` without a value cannot be used
DELETED: Final = f"deleting a record does not lift a mask: {_KEPT}"


class MaskSigner(FleetSigner):
    """Signs a camera's masks with the fleet's token and checks them. Without a token all masks are
    accepted."""

    purpose = b"lookout-masks"

    def sign(self, masks: CameraMasks) -> None:
        """Sign the masks in place."""
        masks.signature = self.mark(_content(masks))

    def check(self, masks: CameraMasks) -> bool:
        """Whether the fleet signed the masks."""
        return self.is_right(masks.signature, _content(masks))

    def read(self, key: str, value: bytes | None, before: CameraMasks | None) -> CameraMasks:
        """Return the masks in a record if they may replace the camera's previous masks.

        Args:
            key: The record's key, which is the camera's id.
            value: The record's value.
            before: The camera's masks so far.

        Raises:
            RuleError: The record may not replace them: it has no value, cannot be read, is not signed, or
                is older.
        """
        if value is None:
            raise RuleError(DELETED)
        masks = read_masks(key, value)
        if not self.signs:
            return masks
        if not self.check(masks):
            raise RuleError(f"the fleet did not sign it: {_KEPT}")
        if before is not None and _is_older(masks, before):
            raise RuleError(f"it is older than the newest accepted mask: {_KEPT}")
        return masks


class SignedMasks:
    """The newest signed masks of each camera. Thread-safe for one writer.

    Args:
        signer: Checks that the fleet signed them.
    """

    def __init__(self, signer: MaskSigner) -> None:
        self._signer = signer
        self.cameras: dict[str, CameraMasks] = {}
        """By camera."""
        self._values: dict[str, bytes] = {}

    def take(self, key: str, value: bytes | None) -> str | None:
        """Apply a record. Return why it was rejected; None if it was applied."""
        try:
            masks = self._signer.read(key, value, self.cameras.get(key))
        except RuleError as error:
            return str(error)
        self.cameras[key], self._values[key] = masks, value or b""
        return None

    def newest(self, camera: str) -> bytes | None:
        """Return a camera's newest accepted record, serialized; None if it has none."""
        return self._values.get(camera)


def _is_older(masks: CameraMasks, before: CameraMasks) -> bool:
    """Whether masks were written before others.

    Only the time counts. Version numbers restart after a record is lost, so an older record may have a higher
    number.
    """
    return masks.versions[-1].since.ToNanoseconds() < before.versions[-1].since.ToNanoseconds()


def _content(masks: CameraMasks) -> bytes:
    """Return the bytes to sign: everything but the signature, in the same bytes for the same facts in every
    release.
    """
    versions = [
        [each.version, each.since.ToNanoseconds(), _zones(each.hide), _zones(each.keep), each.by]
        for each in masks.versions
    ]
    return json.dumps([masks.camera, versions], separators=(",", ":")).encode()


def _zones(zones: Iterable[Zone]) -> list[object]:
    return [[zone.name, [[point.x, point.y] for point in zone.points]] for zone in zones]
