"""Reads the chains of windows that begin in a range of one partition of tokens.v1, with everything needed to
replay them.

A range is given by offsets and not by times, so that all readers agree which range a chain belongs to.
Records before or after the range are also read if a chain of the range needs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, Self

from lookout.models.windows import Planner
from lookout.past.erasures import Fence, read_fence
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.topic_reader import TopicReader
from lookout.streams.chains.epochs import EpochRecords, PastScope, block_record, committed_verdict, is_erased
from lookout.streams.chains.keys import chain_keys
from lookout.streams.chains.replay import is_repeated
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import TOKENS, VERDICTS

_READ_S: Final = 60.0
#: milliseconds by which the clocks of two producers may differ
_SLACK_MS: Final = 60_000
#: milliseconds after a block within which its verdict and the end of its chain are written to Kafka
_LATE_MS: Final = 3_600_000
#: number of records by which reading is first extended beyond a range; doubled with each extension
_EXTENSION: Final = 256


@dataclass(frozen=True, slots=True)
class ChainRange:
    """The chains whose first block is a record in a range of one partition of tokens.v1.

    Attributes:
        partition: The partition's number.
        first: First offset of the range.
        stop: Offset after the range.
        read_from: Offset at which reading begins; records before it are read only if a chain needs them.
    """

    partition: int
    first: int
    stop: int
    read_from: int = 0


@dataclass(frozen=True, slots=True)
class RangeRecords:
    """The records of a range, and the windows that belong to it.

    Attributes:
        epochs: The epochs' records, sorted by camera and epoch number.
        windows: The windows in scope whose chain begins in the range, by stream.
        other_tenants: Cameras that the scope names but whose records belong to another tenant.
    """

    epochs: Sequence[EpochRecords]
    windows: Mapping[str, frozenset[int]]
    other_tenants: frozenset[str] = frozenset()


class PlacedBlock(NamedTuple):
    """A block's record, its offset, and its time in Kafka (Unix milliseconds)."""

    offset: int
    time_ms: int
    record: TokensRecord


class PartitionLog(Protocol):
    """One partition of tokens.v1 and verdicts.v1."""

    #: lowest offset of tokens.v1 that retention has not removed
    lowest: int

    def blocks(self, first: int, stop: int) -> tuple[Sequence[PlacedBlock], bool]:
        """Return the blocks in [first, stop), and whether the topic ends before `stop`."""
        ...

    def verdicts(self, since_ms: int, until_ms: int) -> Iterable[Verdict]:
        """Return the verdicts that Kafka received in this time (Unix milliseconds)."""
        ...


class KafkaPartition:
    """A `PartitionLog` that reads Kafka and omits erased records. A context manager.

    Args:
        settings: How to reach Kafka.
        partition: The partition's number.
        fence: Erased times; None: read them from Kafka now.

    Raises:
        RecordsGoneError: The topic has no such partition.
        TimeoutError: A topic cannot be read to its end.
        KafkaException: Kafka does not answer, or reports an error.
    """

    def __init__(self, settings: ServiceSettings, partition: int, fence: Fence | None = None) -> None:
        self._partition, self._fence = partition, fence or read_fence(settings)
        self._reader = TopicReader(settings, "replay", options={"auto.offset.reset": "earliest"})
        try:
            self._reader.check_partition(TOKENS.name, partition, _READ_S)
            self.lowest = self._reader.begins(TOKENS.name, [partition], _READ_S)[partition]
            self._end = self._reader.ends(TOKENS.name, [partition], _READ_S)[partition]
        except BaseException:
            self._reader.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    def at(self, time_ms: int) -> int:
        """Return the offset of the first record of tokens.v1 that Kafka received at or after this time (Unix
        milliseconds); the end offset if there is none."""
        offset = self._reader.at(TOKENS.name, [self._partition], max(0, time_ms), _READ_S)[self._partition]
        return offset if offset >= 0 else self._end

    def blocks(self, first: int, stop: int) -> tuple[list[PlacedBlock], bool]:
        """See `PartitionLog.blocks`."""
        blocks: list[PlacedBlock] = []
        if first >= self._end:  # from an offset beyond the end, the client would read the earliest records
            return blocks, True
        self._reader.read_from(TOKENS.name, {self._partition: first})
        for message in self._reader.to_the_end():
            if (offset := message.offset() or 0) >= stop:
                return blocks, False
            record = block_record(message)
            if record is not None and not is_erased(record, self._fence):
                blocks.append(PlacedBlock(offset, message.timestamp()[1], record))
        return blocks, True

    def verdicts(self, since_ms: int, until_ms: int) -> Iterator[Verdict]:
        """See `PartitionLog.verdicts`."""
        start = self._reader.at(VERDICTS.name, [self._partition], since_ms, _READ_S)[self._partition]
        if start < 0:
            return
        self._reader.read_from(VERDICTS.name, {self._partition: start})
        for message in self._reader.to_the_end():
            if message.timestamp()[1] > until_ms:
                return
            if (verdict := committed_verdict(message)) is None:
                continue
            span = verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
            if self._fence.hides(verdict.camera, *span) is None:
                yield verdict


def token_partitions(settings: ServiceSettings) -> list[int]:
    """Return the partitions of tokens.v1.

    Raises:
        KafkaException: Kafka does not answer, or reports an error.
    """
    with closing(TopicReader(settings, "replay")) as reader:
        return reader.partitions(TOKENS.name, _READ_S)


def token_ranges(settings: ServiceSettings, since_ms: int, until_ms: int) -> dict[int, ChainRange]:
    """Return the range of each partition of tokens.v1 with the chains of a time range. Partitions without
    records in that time are omitted.

    Args:
        settings: How to reach Kafka.
        since_ms: Begin of the time in which Kafka received the records, Unix milliseconds; 0: the beginning.
        until_ms: End of that time, Unix milliseconds.

    Raises:
        KafkaException: Kafka does not answer, or reports an error.
    """
    topic = TOKENS.name
    reader = TopicReader(settings, "replay")
    try:
        partitions = reader.partitions(topic, _READ_S)
        begins, ends = reader.begins(topic, partitions, _READ_S), reader.ends(topic, partitions, _READ_S)
        since = reader.at(topic, partitions, since_ms, _READ_S) if since_ms > 0 else begins
        until = reader.at(topic, partitions, until_ms, _READ_S)
    finally:
        reader.close()
    ranges = {}
    for partition in partitions:
        begin, stop = (
            offsets[partition] if offsets[partition] >= 0 else ends[partition] for offsets in (since, until)
        )
        if begin < stop:
            # The range begins at offset 0, because a chain that began earlier may extend into the time range.
            ranges[partition] = ChainRange(partition, 0, stop, begin)
    return ranges


def read_range(log: PartitionLog, span: ChainRange, scope: PastScope, planner: Planner) -> RangeRecords:
    """Return the records of a range, and the other records that the range's chains need.

    Args:
        log: The partition.
        span: The range.
        scope: The cameras and windows to return.
        planner: Plans windows with the fleet's settings.
    """
    return _RangeReader(log, span, scope, planner).read()


@dataclass(slots=True)
class _RangeReader:
    """Reads one range. Offsets, keys, chains and windows are by stream."""

    log: PartitionLog
    span: ChainRange
    scope: PastScope
    planner: Planner
    epochs: dict[tuple[str, int], EpochRecords] = field(default_factory=dict)
    offsets: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    times_ms: list[int] = field(default_factory=list)
    keys: dict[str, dict[int, int]] = field(default_factory=dict)
    chains: dict[str, frozenset[int]] = field(default_factory=dict)
    windows: dict[str, frozenset[int]] = field(default_factory=dict)
    other_tenants: set[str] = field(default_factory=set)

    def read(self) -> RangeRecords:
        begin, end = max(self.log.lowest, self.span.read_from), self.span.stop
        at_end = self._read_blocks(begin, end)
        latest_ms = max(self.times_ms, default=0) + _LATE_MS
        size = _EXTENSION
        while True:
            self._read_verdicts()
            from_lowest = begin <= self.log.lowest
            for epoch in self.epochs.values():
                self.keys[epoch.stream] = chain_keys(epoch, self.planner)
                own = self._own_windows(epoch, from_lowest)
                self.chains[epoch.stream] = frozenset(self.keys[epoch.stream][index] for index in own)
                self.windows[epoch.stream] = frozenset(
                    index for index in own if self.scope.includes(epoch.camera, epoch.end_ms(index))
                )
            if not from_lowest and any(map(self._lacks_beginning, self.epochs.values())):
                earlier = max(self.log.lowest, begin - size)
                self._read_blocks(earlier, begin)
                begin = earlier
            elif not at_end and any(map(self._lacks_end, self.epochs.values())):
                at_end = self._read_blocks(end, end + size) or max(self.times_ms) > latest_ms
                end += size
            else:
                epochs = [self.epochs[key] for key in sorted(self.epochs)]
                return RangeRecords(epochs, self.windows, frozenset(self.other_tenants))
            size *= 2

    def _read_blocks(self, first: int, stop: int) -> bool:
        """Add the blocks at offsets [first, stop). Return whether the topic ends before `stop`."""
        placed, at_end = self.log.blocks(first, stop)
        for offset, time_ms, record in placed:
            self.times_ms.append(time_ms)
            if not self.scope.covers(record.camera):
                continue
            if not self.scope.is_own(record.labels.tenant):
                if record.camera in self.scope.cameras:  # named in full, not only matched by a glob
                    self.other_tenants.add(record.camera)
                continue
            epoch = self._epoch(record.camera, record.epoch)
            index, offsets = record.block.index, self.offsets[epoch.stream]
            # If a block has two records, prefill used the first and ignored the second as stale.
            if offset < offsets.get(index, offset + 1):
                offsets[index], epoch.blocks[index] = offset, record
        return at_end

    def _read_verdicts(self) -> None:
        """Replace all verdicts by those of the time in which the blocks were written."""
        for epoch in self.epochs.values():
            epoch.verdicts.clear()
        if not self.epochs:
            return
        for verdict in self.log.verdicts(min(self.times_ms) - _SLACK_MS, max(self.times_ms) + _LATE_MS):
            if self.scope.covers(verdict.camera) and self.scope.is_own(verdict.tenant):
                self._epoch(verdict.camera, verdict.epoch).verdicts[verdict.window].append(verdict)

    def _epoch(self, camera: str, number: int) -> EpochRecords:
        return self.epochs.setdefault((camera, number), EpochRecords(camera, number))

    def _own_windows(self, epoch: EpochRecords, from_lowest: bool) -> list[int]:
        """Return the windows of an epoch whose chain begins in the range.

        Args:
            epoch: The epoch's records.
            from_lowest: Whether all earlier records that Kafka has were read. If so, a chain counts as
                beginning with its first block that still exists.
        """
        keys = set(self.keys[epoch.stream].values())
        offsets = {key: self._offset(epoch, key, from_lowest) for key in keys}
        own = {
            key
            for key, offset in offsets.items()
            if offset is not None and self.span.first <= offset < self.span.stop
        }
        return [index for index, key in self.keys[epoch.stream].items() if key in own]

    def _offset(self, epoch: EpochRecords, key: int, from_lowest: bool) -> int | None:
        """Return the offset at which a chain begins; 0: before the records that were read; None: after
        them."""
        offsets = self.offsets[epoch.stream]
        if key in offsets:
            return offsets[key]
        later = [number for number in offsets if number > key]
        if later:
            return offsets[min(later)] if from_lowest else 0
        # No block of this chain or after it was read. The chain begins before the records that were read only
        # if the camera has a later epoch among them.
        epochs = self._epochs_with_blocks(epoch.camera)
        return 0 if epochs and epoch.epoch < min(epochs) else None

    def _epochs_with_blocks(self, camera: str) -> list[int]:
        """Return the numbers of the camera's epochs of which blocks were read."""
        return [epoch.epoch for epoch in self.epochs.values() if epoch.camera == camera and epoch.blocks]

    def _lacks_beginning(self, epoch: EpochRecords) -> bool:
        """Whether a window in scope may begin with an earlier block that is in Kafka but was not read."""
        keys, blocks = self.keys[epoch.stream], self.planner.settings.blocks
        oldest = min(epoch.blocks, default=0)
        return any(max(0, keys[index] - blocks + 1) < oldest for index in self.windows[epoch.stream])

    def _lacks_end(self, epoch: EpochRecords) -> bool:
        """Whether the epoch's newest chain may continue with a window that is in Kafka but was not read."""
        chains, keys = self.chains[epoch.stream], self.keys[epoch.stream]
        newest = max(epoch.blocks, default=-1)
        if newest < 0 or keys[newest] not in chains or epoch.end_ms(newest) >= self.scope.until_ms:
            return False
        # A chain longer than `longest_chain` continues only with repeated answers.
        ended = newest - keys[newest] + 1 >= self.planner.settings.longest_chain
        if ended and not is_repeated(epoch, newest):
            return False
        return max(self._epochs_with_blocks(epoch.camera)) == epoch.epoch
