"""Takes assigned partitions over, reads them again after an abort, and gives them back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING

from lookout.errors import LookoutRuntimeError, StartupError
from lookout.runtime.observe import logs
from lookout.runtime.observe.health import Health
from lookout.runtime.observe.metrics import Metrics
from lookout.runtime.worker.committing import discard
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Handler, Output, Record, Result, Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.tables import NAMED
from lookout.runtime.worker.takeover import Takeover
from lookout.text import clean

Letter = Callable[[int, int, str, bytes, str], Output | None]
_UNREADABLE = "it cannot be parsed"
_FOREIGN = "it was written with another configuration"


class RequestsTakeovers(Protocol):
    """Queues partitions to be taken over. `Takeovers` implements it."""

    def request(self, partition: Partition) -> None: ...


class Ownership:
    """The partitions that this worker owns. Only the polling thread calls it.

    Args:
        handler: is told which cameras and partitions it loses.
        takeovers: reads offsets and checkpoints.
        refusals: what Kafka has rejected; removed with its partition.
        metrics: gauges of partitions, cameras and lag.
        health: blocked while a partition waits to be taken over; the message names the partition.
        foreign: returns the cameras of a takeover whose checkpoints were written with another configuration.
        own: returns whether the mark stored with a committed offset belongs to this configuration.
        letter: makes a dead letter from a checkpoint's partition, offset, camera and bytes, and the reason.
        refusal: makes the error that ends the process if all checkpoints were written with another
            configuration.
        finished: called with a partition whose inserted slots are finished already.
        limit_s: seconds that a takeover may wait before the process ends.
        begin: returns the offset to start at in a partition without a committed offset.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        handler: Handler[Any],
        takeovers: RequestsTakeovers,
        *,
        refusals: Refusals,
        metrics: Metrics,
        health: Health,
        foreign: Callable[[Takeover], frozenset[str]] = lambda takeover: frozenset(),
        own: Callable[[str], bool] = lambda mark: False,
        letter: Letter | None = None,
        refusal: Callable[[Takeover], Exception] = lambda takeover: StartupError("another configuration"),
        finished: Callable[[Partition], None] = lambda partition: None,
        limit_s: float = float("inf"),
        begin: Callable[[int], int] = lambda number: OFFSET_BEGINNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handler = handler
        self._takeovers = takeovers
        self._refusals = refusals
        self._metrics = metrics
        self._health = health
        self._foreign = foreign
        self._own, self._letter, self._finished = own, letter, finished
        self._refusal = refusal
        # Why checkpoints cannot be used, by partition and camera.
        self._unusable: dict[int, dict[str, str]] = {}
        health.note("unusable checkpoints", self._named_unusable)
        self._agreed = False  # whether a checkpoint or offset with this configuration's mark was read
        # Partitions of which all checkpoints were written with another configuration.
        self._doubtful: dict[int, tuple[Partition, Takeover]] = {}
        self._limit_s, self._begin = limit_s, begin
        self._clock = clock
        self._log = logs.get("partitions")
        self._joined = False
        self.current: dict[int, Partition] = {}

    def assigned(self, numbers: Collection[int]) -> None:
        """Start to take over partitions that were assigned to this worker. Their records are computed
        afterwards."""
        self._joined = True
        if numbers:
            self._log.info("partitions assigned", partitions=sorted(numbers))
        for number in numbers:
            self._take(Partition(number))
        self.update_ready()

    def loaded(self, partition: Partition, takeover: Takeover) -> None:
        """Open `partition` with the state that was read, or keep it closed while its configuration is in
        doubt.

        If the configuration has changed, all checkpoints and the committed offset have another mark. A few
        checkpoints with another mark do not show that: somebody else may have written them to the topic,
        which must not stop this stage for all cameras. So if the offset or any other checkpoint has this
        configuration's mark, or if no offset was ever committed, the partition is opened, and the cameras
        concerned start without a checkpoint.

        Raises:
            StartupError: No checkpoint of any partition fits, and the offsets have another configuration's
                mark, or no mark because an earlier release wrote them.
        """
        if partition.dead:
            return
        foreign = self._foreign(takeover)
        if len(foreign) < len(takeover.checkpoints) or (takeover.mark and self._own(takeover.mark)):
            self._agreed = True
        elif takeover.offset is None:
            pass  # this stage commits checkpoints together with offsets, so it did not write these
        elif foreign and not self._agreed:
            self._doubtful[partition.number] = partition, takeover
            partition.waits_for = "its checkpoints were written with another configuration"
            self._decide()
            return
        self._open(partition, takeover, foreign)
        self._decide()

    def _decide(self) -> None:
        """Open the partitions in doubt as soon as a checkpoint of any partition fits.

        Raises:
            StartupError: All partitions were read, and no checkpoint fits.
        """
        doubtful = {
            number: pair for number, pair in self._doubtful.items() if self.current.get(number) is pair[0]
        }
        self._doubtful = {} if self._agreed else doubtful
        if self._agreed:
            for partition, takeover in doubtful.values():
                self._open(partition, takeover, self._foreign(takeover))
        elif doubtful and all(entry.loaded or entry.number in doubtful for entry in self.current.values()):
            raise self._refusal(next(iter(doubtful.values()))[1])
        self.update_ready()

    def _open(self, partition: Partition, takeover: Takeover, foreign: frozenset[str]) -> None:
        """Start to work on `partition`."""
        partition.waits_for = ""
        partition.loaded = True
        partition.committed = takeover.offset
        partition.seek_to = self._begin(partition.number) if takeover.offset is None else takeover.offset
        checkpoints = {
            name: checkpoint for name, checkpoint in takeover.checkpoints.items() if name not in foreign
        }
        partition.checkpoints = checkpoints
        partition.active_ms = {
            name: checkpoint.record_ms for name, checkpoint in checkpoints.items() if checkpoint.record_ms
        }
        self._set_aside(partition, takeover, foreign)
        self._metrics.takeovers.labels(self._metrics.stage).inc()
        self._log.info(
            "partition taken over",
            partition=partition.number,
            offset=partition.committed,
            cameras=len(partition.checkpoints),
        )

    def _set_aside(self, partition: Partition, takeover: Takeover, foreign: frozenset[str]) -> None:
        """Report checkpoints that cannot be used; each becomes a dead letter and is deleted."""
        unusable = dict.fromkeys(takeover.unreadable, _UNREADABLE) | dict.fromkeys(foreign, _FOREIGN)
        self._unusable[partition.number] = unusable
        for camera, why in sorted(unusable.items()):
            self._metrics.unreadable.labels(self._metrics.stage).inc()
            self._log.error(
                "a checkpoint cannot be used, so its camera starts without a checkpoint",
                camera=clean(camera),
                partition=partition.number,
                why=why,
            )
            # The commit of an offset proves that this worker still owns the partition. Without a committed
            # offset, the deletion could hit a good checkpoint that another owner has written meanwhile.
            if self._letter is None or takeover.offset is None:
                continue
            value = takeover.unreadable.get(camera)
            if value is None:
                value = takeover.checkpoints[camera].SerializeToString()
            output = self._letter(partition.number, takeover.places.get(camera, 0), camera, value, why)
            slot = Slot(camera, result=Result([output] if output else [], forget=True))
            partition.insert(slot, partition.lane(camera))
        if partition.slots:  # commit now, because the next record may come only days later
            self._finished(partition)

    def _named_unusable(self) -> dict[str, object] | None:
        """Return the cameras that started without their checkpoint, with the reason, for /readyz."""
        reasons = {camera: why for part in list(self._unusable.values()) for camera, why in part.items()}
        if not reasons:
            return None
        named = {clean(camera, 200): why for camera, why in islice(reasons.items(), NAMED)}
        return {"cameras": len(reasons), "reasons": named}

    def waits(self, partition: Partition, why: str) -> None:
        """Note why `partition` cannot be taken over yet.

        Raises:
            LookoutRuntimeError: It has been waiting for longer than `limit_s`.
        """
        if partition.dead:
            return
        partition.waits_for = why
        if partition.waits_since is None:
            partition.waits_since = self._clock()
        elif self._clock() - partition.waits_since > self._limit_s:
            raise LookoutRuntimeError(
                f"partition {partition.number} could not be taken over within {self._limit_s:g} s: {why}. "
                "To find transactions that never end, run kafka-transactions.sh find-hanging"
            )
        self.update_ready()

    def kafka_is_back(self) -> None:
        """Restart the time limit of partitions that waited for Kafka itself."""
        for partition in self.current.values():
            partition.waits_since = None

    def again(self, partition: Partition, slots: list[Slot], unknown: bool) -> None:
        """Go back to the committed state, because `slots` were not committed. With `unknown`, Kafka is asked
        whether they were committed after all."""
        if self.current.get(partition.number) is not partition:
            return
        records = [slot.record for slot in (*slots, *partition.slots) if slot.record is not None]
        back = partition.committed if partition.committed is not None else _first(records)
        self._drop(partition)
        if unknown:
            # Take the partition over again, which reads an offset and checkpoints that are consistent.
            self._take(Partition(partition.number))
            self.update_ready()
            return
        fresh = partition.fresh()
        self.current[partition.number] = fresh
        if back is not None and records:
            fresh.seek_to = back

    def gone(self, numbers: Collection[int], what: str) -> None:
        """Drop partitions that belong to another worker now."""
        self._log.info(what, partitions=sorted(numbers))
        for number in numbers:
            partition = self.current.pop(number, None)
            if partition is not None:
                self._drop(partition)
                self._unusable.pop(number, None)
                self._refusals.forget(number)
                self._metrics.partition_gone(number)
                self._handler.revoked(number)
        self.update_ready()

    def close(self) -> None:
        """Mark all partitions as revoked; late results are discarded."""
        for partition in self.current.values():
            partition.dead = True

    def update_ready(self) -> None:
        """Update readiness and metrics with what the worker waits for."""
        waiting = [partition for partition in self.current.values() if not partition.loaded]
        self._metrics.partitions.labels(self._metrics.stage).set(len(self.current))
        self._metrics.taking_over.labels(self._metrics.stage).set(len(waiting))
        if not self._joined:
            self._health.block("worker", "joining the group")
        elif waiting:
            self._health.block("worker", f"taking over partitions: {_named(waiting)}")
        else:
            self._health.clear("worker")

    def _take(self, partition: Partition) -> None:
        self.current[partition.number] = partition
        self._takeovers.request(partition)

    def _drop(self, partition: Partition) -> None:
        partition.dead = True
        discard(self._handler, partition.slots)
        for lane in partition.lanes.values():
            if lane.camera:
                self._handler.released(lane.camera, partition.number)
            # A compute thread still uses the state of a busy lane; `Lanes.finish` drops that state later.
            if not lane.busy:
                lane.give_up(self._handler)


def _first(records: list[Record]) -> int | None:
    return min((record.offset for record in records), default=None)


def _named(waiting: list[Partition]) -> str:
    """Return the partitions as text, such as `3 (its last owner's transaction is open), 5`."""
    ordered = sorted(waiting, key=lambda partition: partition.number)
    return ", ".join(
        f"{partition.number}{f' ({partition.waits_for})' if partition.waits_for else ''}"
        for partition in ordered
    )
