"""Privacy masks in a service: follows the table of `masks.v1`, and discards data when a mask changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from lookout.rules.masks import Masks
from lookout.runtime.store.mask_signing import DELETED, MaskSigner, SignedMasks
from lookout.runtime.worker import Context, ServiceSettings
from lookout.runtime.worker.tables import Table
from lookout.runtime.worker.topic_reader import read_topic
from lookout.wire import MASKS, key_text

_LOOK_S: Final = 0.5
#: seconds after a mask change until all data computed before it has been stored
_IN_WORK_S: Final = 60.0


def live_masks(context: Context[Any], forget: Callable[[str], object] | None = None) -> Masks:
    """Return the masks of all cameras, which follow their topic.

    Args:
        context: The service's context.
        forget: Called with each camera whose masks changed and, at the start, with every camera that has
            masks, because data computed without a mask must not be passed on.
    """
    signed = SignedMasks(MaskSigner.of(context.settings))
    table = context.table(MASKS.name, check=signed.take, kept=1, deletion_fault=DELETED)
    if forget is not None:
        forgetter = _Forgetter(table, forget)
        forgetter.forget_due()
        context.on_close(forgetter.stopped.set)
        context.supervisor.start("masks", forgetter.run)
    return Masks(signed.newest)


def read_masks_now(settings: ServiceSettings) -> Masks:
    """Return the current masks of all cameras in Kafka; none if the topic does not exist, as in a fleet of an
    earlier release.

    Raises:
        TimeoutError: The topic cannot be read to its end.
        KafkaException: Kafka reports an error.
    """
    signed = SignedMasks(MaskSigner.of(settings))
    try:
        for message in read_topic(settings, "masks", MASKS.name):
            signed.take(key_text(message.key()), message.value())
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
    return Masks(signed.newest)


class _Forgetter:
    """Forgets cameras whose masks changed: at once, and again when work in progress has finished."""

    def __init__(self, table: Table, forget: Callable[[str], object]) -> None:
        self._table, self._forget = table, forget
        self._again: dict[str, float] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Follow the table until stopped."""
        while not self.stopped.wait(_LOOK_S):
            self.forget_due()

    def forget_due(self) -> None:
        """Forget the cameras that are due."""
        now = time.monotonic()
        changed = self._table.changes()
        due = {camera for camera, when in self._again.items() if when <= now}
        for camera in changed | due:
            self._forget(camera)
        self._again = {camera: when for camera, when in self._again.items() if camera not in due}
        self._again |= dict.fromkeys(changed, now + _IN_WORK_S)
