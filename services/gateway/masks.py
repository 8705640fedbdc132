"""Keeps the newest signed masks in `masks.v1`, whatever others write there."""

from __future__ import annotations

import threading
from typing import Final

import sqlalchemy

from lookout.administration import WriteError
from lookout.runtime.observe import logs
from lookout.runtime.store.mask_signing import MaskSigner
from lookout.services.gateway.history import queries
from lookout.services.gateway.parts import Parts
from lookout.v1.masks_pb2 import CameraMasks
from lookout.wire import MASKS, from_json, to_json

_EVERY_S: Final = 2.0


class MaskKeeper:
    """Writes masks again that were deleted or replaced in their topic, or that an old token signed.

    Kafka keeps the newest record of a camera alone: without it, a service that starts later would know no
    mask.

    Args:
        parts: Of the gateway, whose history has the newest masks that the fleet signed.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._signer = parts, MaskSigner.of(parts.settings)
        self._stopped = threading.Event()

    def run(self) -> None:
        """Follow the history until `stop`; what Kafka or the database do not take is tried again."""
        while self._signer.signs and not self._stopped.wait(_EVERY_S):
            try:
                self.write()
            except (WriteError, sqlalchemy.exc.DBAPIError) as error:
                reason = str(error).splitlines()[0][:300]
                logs.get("masks").warning("masks are not written again yet", error=reason)

    def stop(self) -> None:
        """End."""
        self._stopped.set()

    def write(self) -> None:
        """Write what does not stand in the topic as it should.

        Raises:
            WriteError: Kafka does not take it.
        """
        with self._parts.database.reading() as connection:
            rows = queries.documents(connection, MASKS.name)
        for row in rows:
            masks = from_json(row.body, CameraMasks)
            if row.fault or not self._signer.check(masks):
                self._signer.sign(masks)
                self._parts.writes.publish(MASKS.name, row.key, to_json(masks), ())
                reason = row.fault or "the fleet's token has changed"
                logs.get("masks").warning("a privacy mask is written again", camera=row.key, reason=reason)
