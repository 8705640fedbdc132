"""The open unit of one camera: restored from a checkpoint, extended and closed by records."""

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
    """A camera and its open unit. The unit is a frozen dataclass that is replaced when all work for a record
    is done."""

    camera: str
    unit: U


@dataclass(slots=True)
class Draft:
    """Collects the results of a record while it is handled.

    Attributes:
        outputs: Records to write.
        tensors: Tensors put into the store for the outputs; released again if the record fails.
        counts: Events by name.
        then: See `Result.then`.
        forget: Whether to forget the camera, that is, delete its checkpoint.
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
        """Return everything, to be committed together with the checkpoint."""
        if self.forget:
            checkpoint = None
        return Result(self.outputs, checkpoint, forget=self.forget, counts=self.counts, then=self.then)


class KeyedStage(Handler[Camera[U]], Generic[U]):
    """A stage with an open unit per camera. Units are closed by records, never by a clock.

    A unit depends only on its checkpoint and the records that the checkpoint lists, so a restored unit equals
    one that was never interrupted.

    Args:
        records: Source from which the records of an open unit are read again.
        fence: Erased times.
    """

    #: topic of the records that `offsets` names
    source_topic: str = ""

    def __init__(self, records: RecordSource, fence: Fence | None = None) -> None:
        self._records, self._fence = records, fence or Fence()

    @abstractmethod
    def begin(self, camera: str) -> U:
        """Return the first unit of a camera that has no checkpoint."""

    @abstractmethod
    def restore(self, camera: str, stored: StoredCheckpoint) -> U:
        """Return the unit in a checkpoint, without the records that the checkpoint lists."""

    def offsets(self, stored: StoredCheckpoint) -> Sequence[int]:
        """Return the offsets of the unit's records, in their order."""
        return ()

    def resume(self, unit: U, records: Sequence[Record], stored: StoredCheckpoint) -> U:
        """Return the unit with its records. If retention removed any of them, `records` is empty, and the
        unit covers less."""
        return unit

    @abstractmethod
    def join(self, camera: Camera[U], record: Record, draft: Draft) -> U | None:
        """Return the unit after a record. None: the unit is unchanged, and no checkpoint is written.

        Args:
            camera: The camera. Assignments to its unit persist, even if the record fails.
            record: The record.
            draft: Receives the record's results.

        Raises:
            BadRecordError: The record cannot be used.
            TransientError: Something that the record needs is unavailable at the moment.
        """

    def turn_down(self, camera: Camera[U], record: Record, reason: DeadLetter, draft: Draft) -> U | None:
        """Return the unit after a record that becomes a dead letter; see `join`."""
        return None

    @abstractmethod
    def checkpoint(self, unit: U) -> Checkpoint:
        """Return the checkpoint that `restore` needs."""

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
            _log.warning("the records of the open unit are lost", camera=camera, error=str(error))
            records = []
        return Camera(camera, self.resume(unit, records, stored))

    def handle(self, state: Camera[U], record: Record) -> Result:
        """See `Handler.handle`."""
        return self._apply(state, lambda draft: self.join(state, record, draft))

    def rejected(self, state: Camera[U], record: Record, reason: DeadLetter) -> Result | None:
        """See `Handler.rejected`."""
        return self.change(state, lambda draft: self.turn_down(state, record, reason, draft))

    def ends(self, camera: str, active_ms: float) -> bool:
        """Whether to forget the camera, because it was erased entirely and has sent nothing since."""
        return self._fence.ends(camera, active_ms)

    def change(self, camera: Camera[U], step: Callable[[Draft], U | None]) -> Result | None:
        """Return the results of a step other than a record, such as a tick; None if there are none.

        Args:
            camera: The camera.
            step: Returns the camera's next unit; None: the unit is unchanged.
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
        """Remove what a draft put into the store after its first `tensors`."""
        del draft.tensors[tensors:]


class ProducingStage(StoreLifecycle, KeyedStage[U], Generic[U]):
    """A stage whose units produce tensors, which the next stage fetches from its store.

    Args:
        store: The store for the tensors.
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
        """Put a tensor that covers `seconds` of stream time into the store.

        Raises:
            TransientError: The store is full; retry later.
            CameraQuotaError: The camera stayed over its quota for too long.
        """
        ref = self._keeper.put(ref, array, Unread(ref.input.partition, seconds), dtype or None)
        draft.tensors.append(ref)
        return ref

    def _undo(self, draft: Draft, tensors: int) -> None:
        # Nobody reads the results of a failed record.
        self._store.release(draft.tensors[tensors:])
        super()._undo(draft, tensors)


def reference_of(record: Record) -> RecordRef:
    """Return a record's topic, partition and offset."""
    return RecordRef(topic=record.topic, partition=record.partition, offset=record.offset)
