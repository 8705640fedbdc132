"""Keeps a service's privacy masks up to date, and has data discarded when a mask changes."""

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

#: seconds between two looks at the table of masks
_LOOK_S: Final = 0.5
#: seconds after a mask change by which all data computed without the change has been stored
_IN_WORK_S: Final = 60.0


def live_masks(context: Context[Any], forget: Callable[[str], object] | None = None) -> Masks:
    """Return the masks of all cameras, kept up to date from `masks.v1`.

    Args:
        context: The service's context.
        forget: Called with every camera that has masks at the start, and later with each camera whose masks
            change, because data that was computed without a mask must not be passed on. None: nothing is
            called.
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
    """Return the current masks of all cameras in Kafka. There are no masks if the topic does not exist, as in
    a fleet of an earlier release.

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
    """Calls `forget` for cameras whose masks changed: at once, and again after `_IN_WORK_S`, when work that
    was in progress has been stored."""

    def __init__(self, table: Table, forget: Callable[[str], object]) -> None:
        self._table, self._forget = table, forget
        self._second_calls: dict[str, float] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Call `forget` for changed cameras until `stopped` is set."""
        while not self.stopped.wait(_LOOK_S):
            self.forget_due()

    def forget_due(self) -> None:
        """Call `forget` for cameras that changed since the last look, and for cameras due a second call."""
        now = time.monotonic()
        changed = self._table.changes()
        due = {camera for camera, when in self._second_calls.items() if when <= now}
        for camera in changed | due:
            self._forget(camera)
        self._second_calls = {
            camera: when for camera, when in self._second_calls.items() if camera not in due
        }
        self._second_calls |= dict.fromkeys(changed, now + _IN_WORK_S)
