"""Privacy masks in a service: the table of `masks.v1`, and what is discarded when a mask changes."""

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
#: seconds after which no data computed before a mask change is still being stored
_IN_WORK_S: Final = 60.0


def live_masks(context: Context[Any], forget: Callable[[str], object] | None = None) -> Masks:
    """Return the masks of cameras, which follow their topic.

    Args:
        context: The service's context.
        forget: Called with each camera whose masks changed, and at the start with every camera that has
            masks: data computed without a mask must not be passed on.
    """
    signed = SignedMasks(MaskSigner.of(context.settings))
    table = context.table(MASKS.name, check=signed.take, kept=1, deletion_fault=DELETED)
    if forget is not None:
        forgetting = _Forgetting(table, forget)
        forgetting.round()
        context.on_close(forgetting.stopped.set)
        context.supervisor.start("masks", forgetting.run)
    return Masks(signed.newest)


def read_masks_now(settings: ServiceSettings) -> Masks:
    """Return the current masks of cameras in Kafka; none if the topic does not exist, as in a fleet of an
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


class _Forgetting:
    """Forgets cameras whose masks changed: at once, and again after work in progress has finished."""

    def __init__(self, table: Table, forget: Callable[[str], object]) -> None:
        self._table, self._forget = table, forget
        self._again: dict[str, float] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Follow the table until stopped."""
        while not self.stopped.wait(_LOOK_S):
            self.round()

    def round(self) -> None:
        """Forget the cameras that are due."""
        now = time.monotonic()
        changed = self._table.changes()
        due = {camera for camera, when in self._again.items() if when <= now}
        for camera in changed | due:
            self._forget(camera)
        self._again = {camera: when for camera, when in self._again.items() if camera not in due}
        self._again |= dict.fromkeys(changed, now + _IN_WORK_S)
