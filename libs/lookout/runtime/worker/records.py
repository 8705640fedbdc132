"""The interface between the worker and a handler: records, results, and the handler's methods. It does not
depend on Kafka."""

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
    damage: str = ""  # a sentence about the part of the record that could not be read; empty if there is none
    loss: Loss | None = None  # the newest loss in its partition that this process has seen
    raw_key: bytes = b""  # the key if it is not UTF-8; `camera` then has U+FFFD in place of invalid bytes


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that retention removed before they were read.

    Attributes:
        offsets: Number of lost offsets, including ends of transactions.
        until_ms: Time of the first record after the lost ones, Unix milliseconds.
    """

    offsets: int
    until_ms: int


class RecordSource(Protocol):
    """Reads records again (`lookout.runtime.worker.RecordReader`)."""

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        """Return the records at `offsets`, sorted by offset, each once.

        Raises:
            RecordsGoneError: Retention has removed a record.
            TransientError: Kafka does not answer in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """A record to write.

    Attributes:
        topic: The topic.
        key: The key.
        value: The value; None deletes the key of a compacted topic.
        headers: The headers.
        tensors: References to tensors in the record. The worker passes them back to `Handler.committed`, with
            the record's offset, or to `Handler.dropped`.
        partition: The partition; None: the partition number of the input record.
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
    """The result of processing a record. It is committed as a whole, together with the record's offset, or
    not at all.

    Attributes:
        outputs: Records to write.
        checkpoint: The camera's new checkpoint, in which the worker sets `config_digest` and `record_ms`;
            None: the checkpoint is unchanged.
        dead_letter: Why the record becomes a dead letter; None: it does not.
        forget: Whether to delete the camera's checkpoint.
        counts: Numbers of events by name, added to `lookout_events_total` at the commit.
        then: Called on the polling thread after the commit; must return at once. None: nothing is called.
    """

    outputs: Sequence[Output] = ()
    checkpoint: Checkpoint | None = None
    dead_letter: DeadLetter | None = None
    forget: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    then: Callable[[], object] | None = None

    @property
    def awaited(self) -> bool:
        """Whether it writes records, for which others wait. A checkpoint or an offset matters only after a
        restart."""
        return bool(self.outputs) or self.dead_letter is not None

    @property
    def empty(self) -> bool:
        """Whether committing it writes nothing but the offset."""
        return not (self.outputs or self.checkpoint is not None or self.dead_letter or self.forget)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A camera's newest checkpoint, as `Handler.load` receives it.

    Attributes:
        checkpoint: The checkpoint.
        partition: The partition of the camera's records.
        config_changed: Whether it was written with another config digest: by an instance with another model
            or release, or before the settings were changed.
    """

    checkpoint: Checkpoint
    partition: int
    config_changed: bool = False

    def own(self, kind: type[M]) -> M | None:
        """Return the service's own message in the checkpoint; None if it has no message of this type.

        Args:
            kind: The type of the message that was passed to `own_checkpoint`.
        """
        message = kind()
        return message if self.checkpoint.own.Unpack(message) else None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A committed output, with its partition and offset. `source` is the input record; None if no record
    caused the output."""

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
    #: values that all running instances of the stage must share, by name, such as {"grid": "16x16"}
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
        """Return the camera's state, built from its newest checkpoint (None: a new camera). Runs on a compute
        thread."""

    @abstractmethod
    def handle(self, state: S, record: Record) -> Result:
        """Process one record; may change `state` in place. One call at a time for a camera; cameras run in
        parallel."""

    def tick(self, state: S, now: float) -> Result | None:
        """React to the wall clock (`now`: Unix seconds), for example with a gap after silence.

        Called only when everything that was sent has been read, so that a backlog or an outage does not count
        as silence.

        Returns:
            What to write; None: nothing.
        """
        return None

    def passed(self, state: S, record_ms: int) -> Result | None:
        """React to the partition's record time.

        Called at most every `tick_every` seconds, even if the worker never reaches the partition's end
        because other cameras send records.

        Args:
            state: The camera's state. Everything that the camera sent before `record_ms` has been processed.
            record_ms: Time stamp of the partition's newest record, of any camera (Unix milliseconds).

        Returns:
            What to write; None: nothing.
        """
        return None

    def ends(self, camera: str, active_ms: float) -> bool:
        """Whether to forget an idle camera now, regardless of `LOOKOUT_FORGET_AFTER_DAYS`.

        Args:
            camera: Id of the camera.
            active_ms: Time of the camera's newest record, Unix milliseconds.
        """
        return False

    def forget(self, state: S) -> Result | None:
        """Return what to write when a camera is forgotten; None if there is nothing to write.

        A camera is forgotten if it sent nothing for `LOOKOUT_FORGET_AFTER_DAYS`, or if `ends` returns True.
        The camera's checkpoint is deleted in the same transaction.
        """
        return None

    def rejected(self, state: S, record: Record, reason: DeadLetter) -> Result | None:
        """Return what else to write when `record` becomes a dead letter: a gap, or an outcome with its
        reason."""
        return None

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """Handle the news that outputs are durable. Called on the polling thread; must return at once."""

    def dropped(self, outputs: Sequence[Output]) -> None:
        """Release the tensors of outputs that will never be written, because a transaction was aborted or a
        partition was given back. Called on the polling thread or a compute thread; must return at once."""

    def revoked(self, partition: int) -> None:
        """Handle the loss of a partition to another worker. Called on the polling thread; must return at
        once."""

    def released(self, camera: str, partition: int) -> None:
        """Drop what is cached for a camera, because the camera has moved to another worker or its state is
        loaded again. Called on the polling thread; must return at once."""

    def leave(self, state: S) -> None:
        """Free what a state holds outside itself, because the state is no longer used.

        Unlike `released`, it is called only when no record of the camera is being processed. Called on any
        thread; must return at once.
        """

    def over_budget(self) -> Collection[int]:
        """Return the partitions to pause, for example because the store is full of unread tensors. Called on
        the polling thread; must return at once."""
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
    due: float | None = None  # latest time of its commit, monotonic seconds; None: not known yet

    @property
    def size(self) -> int:
        """Bytes of the record's value and headers; 0 without a record."""
        record = self.record
        if record is None:
            return 0
        return len(record.value) + sum(len(name) + len(value) for name, value in record.headers)
