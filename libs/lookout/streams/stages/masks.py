"""Privacy masks in a service: the table of `masks.v1`, and what is forgotten when one changes."""

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
#: after which nothing is put into a store that was computed before a mask came
_IN_WORK_S: Final = 60.0


def live_masks(context: Context[Any], forget: Callable[[str], object] | None = None) -> Masks:
    """The masks of cameras, which follow their topic.

    Args:
        context: The service's.
        forget: Called with each camera whose masks changed, and at the start with all that have some: what
            was computed without a mask must not be given out.
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
    """The masks of cameras as Kafka has them now: none where a fleet of an earlier release has no such topic.

    Raises:
        TimeoutError: The topic cannot be read to its end.
        KafkaException: Kafka refuses.
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
    """Forgets cameras whose masks changed: at once, and again once what was being computed is done."""

    def __init__(self, table: Table, forget: Callable[[str], object]) -> None:
        self._table, self._forget = table, forget
        self._again: dict[str, float] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Follow the table."""
        while not self.stopped.wait(_LOOK_S):
            self.round()

    def round(self) -> None:
        """Forget what is due."""
        now = time.monotonic()
        changed = self._table.changes()
        due = {camera for camera, when in self._again.items() if when <= now}
        for camera in changed | due:
            self._forget(camera)
        self._again = {camera: when for camera, when in self._again.items() if camera not in due}
        self._again |= dict.fromkeys(changed, now + _IN_WORK_S)
