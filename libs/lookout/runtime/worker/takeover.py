"""Takes over partitions: reads the committed offset and each camera's newest checkpoint, when the last owner
can no longer write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from lookout.runtime.observe import logs
from lookout.runtime.worker.growth import added_by_hand
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.records import Record
from lookout.runtime.worker.settings import ServiceSettings
from lookout.runtime.worker.topic_reader import BEGINNING, End, TopicReader
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import WireError, check_message, from_bytes

#: number of partitions that are read at the same time
CONCURRENT = 4
#: seconds that one attempt waits for an open transaction, before other partitions are tried
PATIENCE_S = 1.5
#: seconds for a call that does not wait for a transaction; enough for a loaded broker to answer
CALL_S = 5.0
LONGEST_PAUSE_S = 2.0
IDLE_S = 10.0
#: number of attempts after which a missing partition is logged; partitions that are being added exist by then
GROWN_TRIES = 4
#: number of attempts (two minutes) from which a missing partition is logged again at every doubling
REPORT_AGAIN_TRIES = 64
_NO_LEADER = frozenset({KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART})


@dataclass(frozen=True, slots=True)
class Takeover:
    """The state of a partition, as its last owner left it.

    Attributes:
        partition: Number of the partition.
        offset: The group's committed offset; None: no offset was ever committed.
        checkpoints: Checkpoints by camera.
        unreadable: Checkpoints that cannot be parsed, by camera; these cameras start without a checkpoint.
        places: Offsets of checkpoints in the state topic, by camera.
        mark: Configuration mark of the worker that committed `offset`; empty if an earlier release committed
            it.
    """

    partition: int
    offset: int | None
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    unreadable: dict[str, bytes] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    mark: str = ""


class NotYetError(Exception):
    """The partition cannot be taken over yet; the message says why."""


class NoPartitionError(NotYetError):
    """The state topic has fewer partitions than the input topic."""


class ReadsState(Protocol):
    """Reads one partition's state (`StateReader`)."""

    def take(self, partition: int) -> Takeover:
        """Read one partition's state.

        Raises:
            NotYetError: The partition cannot be taken over now.
            KafkaException: Kafka does not answer, or refuses.
        """
        ...

    def close(self) -> None: ...


class StateReader:
    """Reads a partition's committed offset and its checkpoints in `<stage>.state.v1`.

    The order makes offset and checkpoints consistent. First, the group's committed offset is read, which
    Kafka returns only when no transaction with it is open; from then on, the last owner cannot commit. Then
    the state partition is read up to its current high watermark.
    """

    def __init__(self, settings: ServiceSettings, group: str, source: str, state: str) -> None:
        self._source = source
        self._state = state
        self._reader = TopicReader(
            settings,
            "state",
            group=group,
            options={"auto.offset.reset": "earliest"},
        )

    def take(self, partition: int) -> Takeover:
        """Read the offset and checkpoints of one partition.

        Raises:
            NoPartitionError: The state topic does not have the partition.
            NotYetError: The partition cannot be taken over now.
            KafkaException: Kafka does not answer, or refuses.
        """
        try:
            commits = self._reader.commits(self._source, [partition], PATIENCE_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code in (KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT):
                raise NotYetError("its last owner's transaction is open, or Kafka does not answer") from error
            raise
        try:
            end = self._reader.ends(self._state, [partition], CALL_S)[partition]
        except KafkaException as error:
            # Kafka uses the same code for a partition that has no leader at the moment.
            if error.args[0].code() not in _NO_LEADER or partition in self._reader.partitions(
                self._state, CALL_S
            ):
                raise
            raise NoPartitionError(added_by_hand(self._state, partition, self._source)) from error
        commit = commits.get(partition)
        takeover = Takeover(partition, commit.offset if commit else None, mark=commit.mark if commit else "")
        self._read(takeover, end)
        return takeover

    def close(self) -> None:
        """Close the clients."""
        self._reader.close()

    def _read(self, takeover: Takeover, end: int) -> None:
        if end == 0:
            return
        self._reader.read_from(self._state, {takeover.partition: BEGINNING})
        try:
            waited_since = time.monotonic()
            while True:
                message = self._reader.next(0.2)
                if message is None or (isinstance(message, End) and message.offset < end):
                    if time.monotonic() - waited_since > PATIENCE_S:
                        raise NotYetError(f"a transaction in {self._state} is open")
                    continue
                waited_since = time.monotonic()
                if isinstance(message, End):
                    break
                _keep(takeover, record_of(message), deleted=message.value() is None)
                # If the last offset is a transaction's end, which is not delivered, the loop ends with `End`
                # instead.
                if (message.offset() or 0) >= end - 1:
                    break
        finally:
            self._reader.stop_reading()


def _keep(takeover: Takeover, record: Record, *, deleted: bool) -> None:
    """Add one state record to the takeover."""
    camera = record.camera
    if camera.startswith("\x00"):
        return  # an earlier release stored the partition's owner under this key
    for part in (takeover.checkpoints, takeover.unreadable, takeover.places):
        part.pop(camera, None)
    if deleted:
        return
    takeover.places[camera] = record.offset
    try:
        # Parse without the topic table, which does not have the state topics of third-party services.
        checkpoint = from_bytes(record.value, Checkpoint)
        check_message(checkpoint, partition=record.partition, record_ms=record.timestamp_ms)
    except WireError:
        takeover.unreadable[camera] = record.value
    else:
        takeover.checkpoints[camera] = checkpoint


class Takeovers:
    """Takes over partitions on a few threads. If a partition has to wait, others are tried first.

    Args:
        reader: makes a state reader; each thread has its own.
        done: called with the takeover, or with an error that must end the process; on any thread.
        waits: called with the reason while a partition has to wait; on any thread.
        threads: number of partitions read at the same time.
    """

    def __init__(
        self,
        reader: Callable[[], ReadsState],
        done: Callable[[Partition | None, Takeover | None, Exception | None], None],
        waits: Callable[[Partition, str], None],
        threads: int = CONCURRENT,
    ) -> None:
        self._reader = reader
        self._done = done
        self._waits = waits
        self._log = logs.get("takeover")
        self._order = count()
        self._queue: list[tuple[float, int, _Request]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"takeover-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, partition: Partition) -> None:
        """Queue `partition` to be taken over. The request is dropped if the partition is dead."""
        self._put(_Request(partition), 0.0)

    def close(self) -> None:
        """Start no more takeovers; wait for those that are running."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)

    def _put(self, request: _Request, delay: float) -> None:
        with self._changed:
            heappush(self._queue, (time.monotonic() + delay, next(self._order), request))
            self._changed.notify()

    def _get(self) -> _Request | None:
        """Return the next due request; None if there was none for `IDLE_S`, or after `close`."""
        with self._changed:
            while not self._closed:
                if not self._queue:
                    if not self._changed.wait(IDLE_S):
                        return None
                elif (remaining := self._queue[0][0] - time.monotonic()) > 0:
                    self._changed.wait(remaining)
                else:
                    return heappop(self._queue)[2]
        return None

    def _work(self) -> None:
        reader = self._reader()
        try:
            while not self._closed:
                request = self._get()
                if request is None:
                    reader.close()  # do not keep connections open, because takeovers are rare
                elif not request.partition.dead:
                    self._try(reader, request)
        except Exception as error:
            self._done(None, None, error)
        finally:
            reader.close()

    def _try(self, reader: ReadsState, request: _Request) -> None:
        try:
            takeover = reader.take(request.partition.number)
        except (NotYetError, KafkaException) as error:
            reader.close()  # because its clients may have outdated metadata of a broker that was down
            why = str(error.args[0])
            request.tries += 1
            if request.tries & (request.tries - 1) == 0:
                self._tell(request, why, isinstance(error, NoPartitionError))
            self._waits(request.partition, why)
            self._put(request, min(LONGEST_PAUSE_S, 0.05 * 2 ** min(request.tries, 6)))
        except Exception as error:
            self._done(request.partition, None, error)
        else:
            self._done(request.partition, takeover, None)

    def _tell(self, request: _Request, why: str, missing: bool) -> None:
        if missing and (request.tries == GROWN_TRIES or request.tries >= REPORT_AGAIN_TRIES):
            self._log.warning(why, partition=request.partition.number, advice=True)
        elif not missing:
            self._log.warning(
                "a partition cannot be taken over yet; trying again",
                partition=request.partition.number,
                why=why,
            )


@dataclass(slots=True)
class _Request:
    partition: Partition
    tries: int = 0
