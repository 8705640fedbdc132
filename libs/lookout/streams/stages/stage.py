"""One camera's open unit: restored, joined by records, closed by them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog
from google.protobuf.message import Message

from lookout.errors import RecordsGoneError
from lookout.past.erasures import Fence
from lookout.runtime.store import Array, Keeper, StoreLifecycle, TensorStore, Unread
from lookout.runtime.worker import (
    DeadLetter,
    Handler,
    Output,
    Record,
    RecordSource,
    Result,
    StoredCheckpoint,
)
from lookout.v1.lineage_pb2 import RecordRef, TensorRef
from lookout.v1.state_pb2 import Checkpoint

U = TypeVar("U")
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Camera(Generic[U]):
    """A camera and its open unit, a frozen dataclass: it is replaced once all of a record is done."""

    camera: str
    unit: U


@dataclass(slots=True)
class Draft:
    """What a record gives, until it is done.

    Attributes:
        outputs: Records to write.
        tensors: Put into the store for them; released again where the record fails.
        counts: Events by name.
        then: See `Result.then`.
        forget: The camera is forgotten: its checkpoint is deleted.
    """

    outputs: list[Output] = field(default_factory=list)
    tensors: list[TensorRef] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    then: Callable[[], object] | None = None
    forget: bool = False

    def write(self, topic: str, camera: str, message: Message, tensors: Sequence[TensorRef] = ()) -> None:
        """Add a record to write."""
        self.outputs.append(Output(topic, camera, message.SerializeToString(), tensors=tensors))

    def result(self, checkpoint: Checkpoint | None = None) -> Result:
        """All of it, to be committed together with the checkpoint."""
        if self.forget:
            checkpoint = None
        return Result(self.outputs, checkpoint, forget=self.forget, counts=self.counts, then=self.then)


class KeyedStage(Handler[Camera[U]], Generic[U]):
    """A stage whose cameras have open units. Units close by records, never by a clock.

    A unit is a function of its checkpoint and the records that the checkpoint names: one that was restored
    equals one that was never interrupted.

    Args:
        records: Where the records of an open unit are read again.
        fence: What was erased.
    """

    #: topic of the records that `offsets` names
    source_topic: str = ""

    def __init__(self, records: RecordSource, fence: Fence | None = None) -> None:
        self._records, self._fence = records, fence or Fence()

    @abstractmethod
    def begin(self, camera: str) -> U:
        """The unit of a camera without a checkpoint."""

    @abstractmethod
    def restore(self, camera: str, stored: StoredCheckpoint) -> U:
        """The unit of a checkpoint, without the records that it names."""

    def offsets(self, stored: StoredCheckpoint) -> Sequence[int]:
        """Offsets of the unit's records, in their order."""
        return ()

    def resume(self, unit: U, records: Sequence[Record], stored: StoredCheckpoint) -> U:
        """The unit with its records; without any where retention removed one, so that it sees less."""
        return unit

    @abstractmethod
    def join(self, camera: Camera[U], record: Record, draft: Draft) -> U | None:
        """The unit after a record. None: it is as before, and no checkpoint is written.

        Args:
            camera: The camera. What is assigned to its unit stays, also where the record fails.
            record: The record.
            draft: Takes what the record gives.

        Raises:
            BadRecordError: Nothing can be made of the record.
            TransientError: Something that it needs is not available now.
        """

    def turn_down(self, camera: Camera[U], record: Record, reason: DeadLetter, draft: Draft) -> U | None:
        """The unit after a record that becomes a dead letter; see `join`."""
        return None

    @abstractmethod
    def checkpoint(self, unit: U) -> Checkpoint:
        """What `restore` needs."""

    def load(self, camera: str, stored: StoredCheckpoint | None) -> Camera[U]:
        """See `Handler.load`."""
        if stored is None:
            return Camera(camera, self.begin(camera))
        unit, offsets = self.restore(camera, stored), self.offsets(stored)
        if not offsets:
            return Camera(camera, unit)
        try:
            records = self._records.read(self.source_topic, stored.partition, offsets)
        except RecordsGoneError as error:
            _log.warning("records of the open unit are lost", camera=camera, error=str(error))
            records = []
        return Camera(camera, self.resume(unit, records, stored))

    def handle(self, state: Camera[U], record: Record) -> Result:
        """See `Handler.handle`."""
        return self._apply(state, lambda draft: self.join(state, record, draft))

    def rejected(self, state: Camera[U], record: Record, reason: DeadLetter) -> Result | None:
        """See `Handler.rejected`."""
        return self.change(state, lambda draft: self.turn_down(state, record, reason, draft))

    def ends(self, camera: str, active_ms: float) -> bool:
        """A camera that was erased whole is forgotten once it is silent."""
        return self._fence.ends(camera, active_ms)

    def change(self, camera: Camera[U], step: Callable[[Draft], U | None]) -> Result | None:
        """What a step other than a record gives, such as a tick. None: nothing.

        Args:
            camera: The camera.
            step: Gives its next unit; None: it is as before.
        """
        result = self._apply(camera, step)
        return None if result.empty else result

    def _apply(self, camera: Camera[U], step: Callable[[Draft], U | None]) -> Result:
        draft = Draft()
        try:
            unit = step(draft)
        except BaseException:
            self._undo(draft, 0)
            raise
        if unit is None:
            return draft.result()
        camera.unit = unit
        return draft.result(self.checkpoint(unit))

    def _undo(self, draft: Draft, tensors: int) -> None:
        """Take back what a draft put into the store after its first `tensors`."""
        del draft.tensors[tensors:]


class ProducingStage(StoreLifecycle, KeyedStage[U], Generic[U]):
    """A stage whose units give tensors, which the next stage fetches from its store.

    Args:
        store: Takes the tensors.
        records: See `KeyedStage`.
        fence: See `KeyedStage`.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: TensorStore,
        records: RecordSource,
        fence: Fence | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        KeyedStage.__init__(self, records, fence)
        self._store, self._keeper = store, Keeper(store, clock)

    def put(self, draft: Draft, ref: TensorRef, array: Array, seconds: float, dtype: str = "") -> TensorRef:
        """Put a tensor of `seconds` of stream time into the store.

        Raises:
            TransientError: The store is full; retry later.
            CameraQuotaError: The camera stayed over its quota for too long.
        """
        ref = self._keeper.put(ref, array, Unread(ref.input.partition, seconds), dtype or None)
        draft.tensors.append(ref)
        return ref

    def _undo(self, draft: Draft, tensors: int) -> None:
        # Nobody will read what a part of the record left there.
        self._store.release(draft.tensors[tensors:])
        super()._undo(draft, tensors)


def reference_of(record: Record) -> RecordRef:
    """Where a record stands."""
    return RecordRef(topic=record.topic, partition=record.partition, offset=record.offset)
