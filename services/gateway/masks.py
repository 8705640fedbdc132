"""Makes sure that the newest signed masks stay in `masks.v1`, even if somebody deletes or replaces them."""

from __future__ import annotations

from lookout.runtime.observe import logs
from lookout.runtime.store.mask_signing import MaskSigner
from lookout.services.gateway.history import queries
from lookout.services.gateway.parts import Parts
from lookout.v1.masks_pb2 import CameraMasks
from lookout.wire import MASKS, from_json, to_json


class MaskKeeper:
    """Rewrites masks that were deleted or replaced in their topic, or that were signed with a former
    token.

    The topic is compacted, so Kafka keeps only a camera's newest record. Without a rewrite, a service that
    starts later would not know the mask.

    Args:
        parts: The gateway's parts; its history has the newest masks that the fleet signed.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._signer = parts, MaskSigner.of(parts.settings)
        self._mark = ""

    def write(self) -> None:
        """Rewrite the masks that are missing or wrong in the topic.

        Raises:
            WriteError: Kafka does not accept a record.
        """
        if not self._signer.signs:
            return
        nothing = CameraMasks()
        self._signer.sign(nothing)  # its signature changes with the token
        with self._parts.database.reading() as connection:
            rows = queries.documents(connection, MASKS.name)
        for row in rows if nothing.signature != self._mark else [row for row in rows if row.fault]:
            masks = from_json(row.body, CameraMasks)
            if row.fault or not self._signer.check(masks):
                self._signer.sign(masks)
                self._parts.writes.publish(MASKS.name, row.key, to_json(masks), ())
                reason = row.fault or "the fleet's token has changed"
                logs.get("masks").warning("rewriting a privacy mask", camera=row.key, reason=reason)
        self._mark = nothing.signature
