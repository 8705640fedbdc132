"""What handlers see: records in, results out. Nothing here knows Kafka."""

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
    damage: str = ""  # what of the record could not be read, for people
    loss: Loss | None = None  # the newest one of its partition, as far as this process has seen it
    raw_key: bytes = b""  # the record's key where it is no UTF-8: `camera` has U+FFFD for what was not


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that retention removed before they were read.

    Attributes:
        offsets: Their number, ends of transactions included.
        until_ms: Record time of the first one after them.
    """

    offsets: int
    until_ms: int


class RecordSource(Protocol):
    """Where records are read again (`lookout.runtime.worker.RecordReader`)."""

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        """The records at `offsets`, in their order.

        Raises:
            RecordsGoneError: Retention has removed one.
            TransientError: Kafka does not answer in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """One record to write, to the partition number that its input came from, or to `partition`. `value` None
    deletes (compacted topics).

    `tensors` are the references that the record carries: they come back with its offset in
    `Handler.committed`, or in `Handler.dropped`.
    """

    topic: str
    key: str
    value: bytes | None
    headers: Headers = ()
    tensors: Sequence[TensorRef] = ()
    partition: int | None = None


WORKER_REASONS: Final[Mapping[str, str]] = {
    "no-camera": "a record without a key: the camera's id",
    "bad-camera": "a camera's id that is too long or not text",
    "bad-headers": "headers that cannot be read",
    "unreadable": "offsets that the broker could not give",
    "bad-checkpoint": "a camera's checkpoint that cannot be read",
    "overdue": "work on a record took longer than `LOOKOUT_WORK_LIMIT_S`",
    "unavailable": "what a record needs stayed away longer than `LOOKOUT_RETRY_LIMIT_S`",
    "internal-error": "a fault of the handler, in every attempt",
    "output-refused": "an output that is too large or that Kafka rejects",
    "quota": "records over a camera's quota, or over one of its tenant",
}
"""Reasons of dead letters that any stage may write, with what each means."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Sends the input record, as it came, to the dead letters of its topic."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What one record gave; all of it, and the record's offset, are committed together or not at all.

    `checkpoint` None: unchanged. The worker fills in the config digest and the time. `forget` deletes the
    camera's checkpoint. `counts`: events by name, added to `lookout_events_total` once they are committed.
    `then` is called once all of it is committed, on the polling thread: it returns at once.
    """

    outputs: Sequence[Output] = ()
    checkpoint: Checkpoint | None = None
    dead_letter: DeadLetter | None = None
    forget: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    then: Callable[[], object] | None = None

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for what it writes; a checkpoint or an offset alone is only for restarts."""
        return bool(self.outputs) or self.dead_letter is not None

    @property
    def empty(self) -> bool:
        """Whether committing it writes nothing."""
        return not (self.outputs or self.checkpoint is not None or self.dead_letter or self.forget)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A camera's newest checkpoint, as `Handler.load` gets it.

    `config_changed`: it was written under another config digest: by another model or release that runs beside
    this one, or before the settings were changed.
    """

    checkpoint: Checkpoint
    partition: int
    config_changed: bool = False

    def own(self, kind: type[M]) -> M | None:
        """The service's own message in it; None where it holds none of that kind.

        Args:
            kind: The message that `own_checkpoint` was given.
        """
        message = kind()
        return message if self.checkpoint.own.Unpack(message) else None


@dataclass(frozen=True, slots=True)
class Delivery:
    """An output that is now committed, and where."""

    output: Output
    partition: int
    offset: int
    source: Record | None


def own_checkpoint(state: Message) -> Checkpoint:
    """A checkpoint with a message of the service's own: `StoredCheckpoint.own` reads it."""
    checkpoint = Checkpoint()
    checkpoint.own.Pack(state)
    return checkpoint


NOTHING = Result()


class Handler(ABC, Generic[S]):
    """One stage's logic, without Kafka. See the package's guide."""

    #: of every setting and weight that changes this stage's results
    config_digest: str = ""
    #: what all running instances of the stage must share, by name: `settings.shared`, {"grid": "16x16"}
    shared_settings: Mapping[str, str] = {}
    #: seconds between `tick` calls for a camera that has nothing else to do; None: never
    tick_every: float | None = None
    #: what `Result.counts` may name, with its meaning; each is a series of `lookout_events_total`
    events: Mapping[str, str] = {}
    #: what `BadRecordError` may name beyond `WORKER_REASONS`, with its meaning; each is a series of
    #: `lookout_dead_letters_total`
    reasons: Mapping[str, str] = {}
    #: tries of a record that fails for no known reason before it becomes a dead letter
    attempts: int = 3

    @abstractmethod
    def load(self, camera: str, stored: StoredCheckpoint | None) -> S:
        """The camera's state from its newest checkpoint (None: a camera never seen). Runs on a compute
        thread.
        """

    @abstractmethod
    def handle(self, state: S, record: Record) -> Result:
        """Process one record; may change `state` in place. One call at a time for a camera, cameras in
        parallel.
        """

    def tick(self, state: S, now: float) -> Result | None:
        """What the mere passing of time gives (`now`: Unix seconds): a gap after silence. None: nothing.

        Called only while everything that was sent is read, so a backlog or an outage is no silence.
        """
        return None

    def passed(self, state: S, record_ms: int) -> Result | None:
        """What the partition's record time gives: `record_ms` (Unix milliseconds) is the time stamp of its
        newest record, of any camera; everything this camera sent before it is processed. None: nothing.

        Called every `tick_every` seconds at most, also while other cameras keep the partition from its end.
        """
        return None

    def ends(self, camera: str, active_ms: float) -> bool:
        """Whether an idle camera is to be forgotten now, whatever `LOOKOUT_FORGET_AFTER_DAYS` says.

        Args:
            camera: Its id.
            active_ms: Time of its newest record, Unix milliseconds.
        """
        return False

    def forget(self, state: S) -> Result | None:
        """What to write when the camera sent nothing for `LOOKOUT_FORGET_AFTER_DAYS`, or `ends` says so.
        None: nothing.

        Its checkpoint is deleted in the same transaction.
        """
        return None

    def rejected(self, state: S, record: Record, reason: DeadLetter) -> Result | None:
        """What else to write when `record` becomes a dead letter: a gap, or an outcome with its reason."""
        return None

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """Outputs that are now durable. Called on the polling thread: return at once."""

    def dropped(self, outputs: Sequence[Output]) -> None:
        """Outputs that will never be written (an aborted transaction, a partition given back): release their
        tensors.
        """

    def revoked(self, partition: int) -> None:
        """The partition is no longer this worker's. Polling thread: return at once."""

    def released(self, camera: str, partition: int) -> None:
        """The camera belongs to another worker now, or is started again. Polling thread: return at once."""

    def leave(self, state: S) -> None:
        """Free what a state holds outside itself: it is used no more, and nothing computes with it.

        Unlike `released` it waits for a record that was being processed. Any thread: return at once.
        """

    def over_budget(self) -> Collection[int]:
        """Partitions to stop reading for now (the store is full of unread tensors). Polling thread: return at
        once.
        """
        return ()


@dataclass(slots=True)
class Slot:
    """A place in a partition's order: a record, a timer tick, or the removal of a camera."""

    camera: str
    record: Record | None = None
    tick: bool = False  # tell the camera the time
    record_ms: int | None = None  # tell the camera this record time of its partition
    forget: bool = False
    result: Result | None = None
    tries: int = 0
    failures: int = 0
    failing_since: float | None = None
    device_failing_since: float | None = None
    received: float = 0.0
    arrived_ms: int = 0  # when what the record came from reached Kafka
    traceparent: Headers = field(default=())
    due: float | None = None  # when it has to be committed, monotonic seconds; None: it cannot be yet

    @property
    def size(self) -> int:
        """Bytes waiting."""
        record = self.record
        if record is None:
            return 0
        return len(record.value) + sum(len(name) + len(value) for name, value in record.headers)
