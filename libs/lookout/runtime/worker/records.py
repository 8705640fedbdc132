"""The handler's interface: records in, results out. Nothing here depends on Kafka."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from lookout.v1.lineage_pb2 import TensorRef
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire.headers import Headers

S = TypeVar("S")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the stage's input topic. `timestamp_ms` is Kafka's; `camera` is the record's key."""

    topic: str
    partition: int
    offset: int
    camera: str
    value: bytes
    headers: Headers = ()
    timestamp_ms: int = 0
    damage: str = ""  # which part of the record could not be read, for people
    loss: Loss | None = None  # the newest loss in its partition that this process has seen
    raw_key: bytes = b""  # the key, if it is not UTF-8: `camera` has U+FFFD for the invalid bytes


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that retention removed before they were read.

    Attributes:
        offsets: Their number, ends of transactions included.
        until_ms: Record time of the first record after them.
    """

    offsets: int
    until_ms: int


class RecordSource(Protocol):
    """Reads records again (`lookout.runtime.worker.RecordReader`)."""

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        """Return the records at `offsets`, sorted by offset, each once.

        Raises:
            RecordsGoneError: Retention has removed one.
            TransientError: Kafka does not answer in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """One record to write, to `partition`, or by default to the partition number of its input.

    `value` None deletes the key (compacted topics). `tensors` are the references that the record carries;
    they come back in `Handler.committed` with the record's offset, or in `Handler.dropped`.
    """

    topic: str
    key: str
    value: bytes | None
    headers: Headers = ()
    tensors: Sequence[TensorRef] = ()
    partition: int | None = None


WORKER_REASONS: Final[Mapping[str, str]] = {
    "no-camera": "a record without a key, which must be the camera's id",
    "bad-camera": "a key that is too long for a camera's id, or not text",
    "bad-headers": "headers that cannot be read",
    "unreadable": "records that the Kafka client cannot read, because they are damaged or too large once "
    "decompressed",
    "bad-checkpoint": "a camera's checkpoint that cannot be used",
    "overdue": "work on a record took longer than `LOOKOUT_WORK_LIMIT_S`",
    "unavailable": "a dependency was unavailable for longer than `LOOKOUT_RETRY_LIMIT_S`",
    "internal-error": "the handler failed in every attempt",
    "output-refused": "an output that is too large or that Kafka rejects",
    "quota": "records beyond the camera's quota, or beyond one of its tenant's quotas",
}
"""Reasons for dead letters that any stage may write, with their meanings."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A request to write the unchanged input record to the dead letters of its topic."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What a handler made of one record; all of it is committed with the record's offset, or none of it.

    `checkpoint` None: unchanged. The worker fills in the config digest and the time. `forget` deletes the
    camera's checkpoint. `counts` are events by name, added to `lookout_events_total` at the commit. `then` is
    called on the polling thread after the commit; it must return at once.
    """

    outputs: Sequence[Output] = ()
    checkpoint: Checkpoint | None = None
    dead_letter: DeadLetter | None = None
    forget: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    then: Callable[[], object] | None = None

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for its records. A checkpoint or an offset alone matters only after a
        restart."""
        return bool(self.outputs) or self.dead_letter is not None

    @property
    def empty(self) -> bool:
        """Whether committing it writes nothing but the offset."""
        return not (self.outputs or self.checkpoint is not None or self.dead_letter or self.forget)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A camera's newest checkpoint, as `Handler.load` receives it.

    `config_changed`: it was written under another config digest, either by another model or release running
    alongside this one, or before the settings were changed.
    """

    checkpoint: Checkpoint
    partition: int
    config_changed: bool = False

    def own(self, kind: type[M]) -> M | None:
        """Return the service's own message in it; None if it holds none of this kind.

        Args:
            kind: The type of the message that was passed to `own_checkpoint`.
        """
        message = kind()
        return message if self.checkpoint.own.Unpack(message) else None


@dataclass(frozen=True, slots=True)
class Delivery:
    """An output that is committed, with its partition and offset."""

    output: Output
    partition: int
    offset: int
    source: Record | None


def own_checkpoint(state: Message) -> Checkpoint:
    """Wrap a service's own message in a checkpoint; `StoredCheckpoint.own` reads it."""
    checkpoint = Checkpoint()
    checkpoint.own.Pack(state)
    return checkpoint


NOTHING = Result()


class Handler(ABC, Generic[S]):
    """One stage's logic, without Kafka. See the package's guide."""

    #: digest of every setting and weight that changes this stage's results
    config_digest: str = ""
    #: what all running instances of the stage must share, by name: `settings.shared`, {"grid": "16x16"}
    shared_settings: Mapping[str, str] = {}
    #: seconds between `tick` calls for a camera that has nothing else to do; None: never
    tick_every: float | None = None
    #: events that `Result.counts` may name, with their meanings; each is a series of `lookout_events_total`
    events: Mapping[str, str] = {}
    #: reasons that `BadRecordError` may name besides `WORKER_REASONS`, with their meanings; each is a series
    #: of `lookout_dead_letters_total`
    reasons: Mapping[str, str] = {}
    #: attempts at a record that fails for an unknown reason before it becomes a dead letter
    attempts: int = 3

    @abstractmethod
    def load(self, camera: str, stored: StoredCheckpoint | None) -> S:
        """Build the camera's state from its newest checkpoint (None: a new camera). Runs on a compute
        thread."""

    @abstractmethod
    def handle(self, state: S, record: Record) -> Result:
        """Process one record; may change `state` in place. One call at a time for a camera; cameras run in
        parallel."""

    def tick(self, state: S, now: float) -> Result | None:
        """React to the wall clock (`now`: Unix seconds), such as with a gap after silence. Return None if
        there is nothing to write.

        Called only while everything that was sent has been read, so a backlog or an outage does not count as
        silence.
        """
        return None

    def passed(self, state: S, record_ms: int) -> Result | None:
        """React to the partition's record time. Return None if there is nothing to write.

        `record_ms` (Unix milliseconds) is the time stamp of the partition's newest record, of any camera.
        Everything that this camera sent before it has been processed.

        Called every `tick_every` seconds at most, also while other cameras keep the worker from reaching the
        partition's end.
        """
        return None

    def ends(self, camera: str, active_ms: float) -> bool:
        """Whether to forget an idle camera now, whatever `LOOKOUT_FORGET_AFTER_DAYS` says.

        Args:
            camera: Its id.
            active_ms: Time of its newest record, Unix milliseconds.
        """
        return False

    def forget(self, state: S) -> Result | None:
        """Return what to write when a camera is forgotten; None if there is nothing to write.

        A camera is forgotten if it sent nothing for `LOOKOUT_FORGET_AFTER_DAYS`, or `ends` returns True. Its
        checkpoint is deleted in the same transaction.
        """
        return None

    def rejected(self, state: S, record: Record, reason: DeadLetter) -> Result | None:
        """Return what else to write when `record` becomes a dead letter: a gap, or an outcome with its
        reason."""
        return None

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """Outputs became durable. Called on the polling thread: return at once."""

    def dropped(self, outputs: Sequence[Output]) -> None:
        """Outputs will never be written, because a transaction was aborted or a partition was given back:
        release their tensors."""

    def revoked(self, partition: int) -> None:
        """A partition no longer belongs to this worker. Called on the polling thread: return at once."""

    def released(self, camera: str, partition: int) -> None:
        """A camera moved to another worker, or its state is reloaded. Called on the polling thread: return at
        once."""

    def leave(self, state: S) -> None:
        """Free what a state holds outside itself; nothing uses the state any more.

        Unlike `released`, it is called only after a running record of the camera has finished. Called on any
        thread: return at once.
        """

    def over_budget(self) -> Collection[int]:
        """Return partitions to pause (the store is full of unread tensors). Called on the polling thread:
        return at once."""
        return ()


@dataclass(slots=True)
class Slot:
    """One entry in a partition's order: a record, a timer tick, or the removal of a camera."""

    camera: str
    record: Record | None = None
    tick: bool = False  # call the handler's `tick` for the camera
    record_ms: int | None = None  # call its `passed` with this record time
    forget: bool = False
    result: Result | None = None
    tries: int = 0
    failures: int = 0
    failing_since: float | None = None
    device_failing_since: float | None = None
    received: float = 0.0
    arrived_ms: int = 0  # when the segment that the record derives from reached Kafka
    traceparent: Headers = field(default=())
    due: float | None = None  # when it has to be committed, monotonic seconds; None: it is not finished

    @property
    def size(self) -> int:
        """Bytes of the record's value and headers; 0 without a record."""
        record = self.record
        if record is None:
            return 0
        return len(record.value) + sum(len(name) + len(value) for name, value in record.headers)
