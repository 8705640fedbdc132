"""Keeps the newest signed masks in `masks.v1`, whatever others write there."""

from __future__ import annotations

from lookout.runtime.observe import logs
from lookout.runtime.store.mask_signing import MaskSigner
from lookout.services.gateway.history import queries
from lookout.services.gateway.parts import Parts
from lookout.v1.masks_pb2 import CameraMasks
from lookout.wire import MASKS, from_json, to_json


class MaskKeeper:
    """Writes masks again that were deleted or replaced in their topic, or that an old token signed.

    Kafka keeps the newest record of a camera alone: without it, a service that starts later would know no
    mask.

    Args:
        parts: Of the gateway, whose history has the newest masks that the fleet signed.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._signer = parts, MaskSigner.of(parts.settings)
        self._mark = ""

    def write(self) -> None:
        """Write what does not stand in the topic as it should.

        Raises:
            WriteError: Kafka does not take it.
        """
        if not self._signer.signs:
            return
        nothing = CameraMasks()
        self._signer.sign(nothing)  # its signature changes with the token: all others are checked then
        with self._parts.database.reading() as connection:
            rows = queries.documents(connection, MASKS.name)
        for row in rows if nothing.signature != self._mark else [row for row in rows if row.fault]:
            masks = from_json(row.body, CameraMasks)
            if row.fault or not self._signer.check(masks):
                self._signer.sign(masks)
                self._parts.writes.publish(MASKS.name, row.key, to_json(masks), ())
                reason = row.fault or "the fleet's token has changed"
                logs.get("masks").warning("a privacy mask is written again", camera=row.key, reason=reason)
        self._mark = nothing.signature
