"""Restores a camera's open unit from a checkpoint, and extends and closes it with the camera's records."""

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
    """A camera's id and its open unit. The unit is a frozen dataclass, which is replaced when all work for a
    record is done."""

    camera: str
    unit: U


@dataclass(slots=True)
class Draft:
    """Collects the results of a record while the record is handled.

    Attributes:
        outputs: Records to write.
        tensors: Tensors put into the store for the outputs; they are released if the record fails.
        counts: Numbers of events, by name (see `Result.counts`).
        then: See `Result.then`.
        forget: Whether to delete the camera's checkpoint.
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
        """Return the draft and a checkpoint as one result, to be committed together. None: no checkpoint."""
        if self.forget:
            checkpoint = None
        return Result(self.outputs, checkpoint, forget=self.forget, counts=self.counts, then=self.then)


class KeyedStage(Handler[Camera[U]], Generic[U]):
    """A stage with one open unit per camera. Records close units; a clock never does.

    A unit depends only on its checkpoint and the records that the checkpoint lists. Therefore, a restored
    unit equals a unit that was never interrupted.

    Args:
        records: Source from which the records of an open unit are read again.
        fence: Erased times; None: no time was erased.
    """

    #: topic of the records at `offsets`
    source_topic: str = ""

    def __init__(self, records: RecordSource, fence: Fence | None = None) -> None:
        self._records, self._fence = records, fence or Fence()

    @abstractmethod
    def begin(self, camera: str) -> U:
        """Return the first unit of a camera that has no checkpoint."""

    @abstractmethod
    def restore(self, camera: str, stored: StoredCheckpoint) -> U:
        """Return the unit in a checkpoint. The records that the checkpoint lists are added by `resume`."""

    def offsets(self, stored: StoredCheckpoint) -> Sequence[int]:
        """Return the offsets of the unit's records that `load` must read again, in the order of the
        records."""
        return ()

    def resume(self, unit: U, records: Sequence[Record], stored: StoredCheckpoint) -> U:
        """Return a restored unit with its records added. If retention removed any of the records, `records`
        is empty, and the unit covers less time."""
        return unit

    @abstractmethod
    def join(self, camera: Camera[U], record: Record, draft: Draft) -> U | None:
        """Return the unit after a record. None: the unit is unchanged, and no checkpoint is written.

        Args:
            camera: The camera. If `camera.unit` is assigned here, it stays changed even if the record fails.
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
            _log.warning(
                "records of the open unit no longer exist, so the unit will cover less time",
                camera=camera,
                error=str(error),
            )
            records = []
        return Camera(camera, self.resume(unit, records, stored))

    def handle(self, state: Camera[U], record: Record) -> Result:
        """See `Handler.handle`."""
        return self._apply(state, lambda draft: self.join(state, record, draft))

    def rejected(self, state: Camera[U], record: Record, reason: DeadLetter) -> Result | None:
        """See `Handler.rejected`."""
        return self.change(state, lambda draft: self.turn_down(state, record, reason, draft))

    def ends(self, camera: str, active_ms: float) -> bool:
        """Whether to delete the camera's state, because the camera was erased entirely and has sent nothing
        since. `active_ms`: when it last sent something, Unix milliseconds."""
        return self._fence.ends(camera, active_ms)

    def change(self, camera: Camera[U], step: Callable[[Draft], U | None]) -> Result | None:
        """Return the results of a step that is not a record, such as a timer tick; None if it has no results.

        Args:
            camera: The camera.
            step: Adds its results to the draft and returns the camera's next unit; None: the unit is
                unchanged.
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
        """Remove all tensors of a draft but its first `tensors` ones."""
        del draft.tensors[tensors:]


class ProducingStage(StoreLifecycle, KeyedStage[U], Generic[U]):
    """A stage that produces tensors, which the next stage fetches from this stage's store.

    Args:
        store: The store for the tensors.
        records: See `KeyedStage`.
        fence: See `KeyedStage`.
        clock: Returns monotonic seconds.
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
        """Put a tensor into the store, add it to the draft, and return its reference.

        Args:
            draft: The draft of the record.
            ref: Reference to the tensor.
            array: The tensor.
            seconds: Stream time that the tensor covers.
            dtype: Data type, if it is not the array's; empty: the array's.

        Raises:
            TransientError: The store is full; retry later.
            CameraQuotaError: The camera stayed over its quota for too long.
        """
        ref = self._keeper.put(ref, array, Unread(ref.input.partition, seconds), dtype or None)
        draft.tensors.append(ref)
        return ref

    def _undo(self, draft: Draft, tensors: int) -> None:
        # A failed record publishes no reference to its tensors, so nobody will read them.
        self._store.release(draft.tensors[tensors:])
        super()._undo(draft, tensors)


def reference_of(record: Record) -> RecordRef:
    """Return a record's topic, partition and offset."""
    return RecordRef(topic=record.topic, partition=record.partition, offset=record.offset)
