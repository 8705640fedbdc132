"""Reads cameras' records from Kafka for searches: those of one camera's windows, or all in a time range."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Self

from confluent_kafka import KafkaException

from lookout.errors import LookoutError
from lookout.models.windows import Planner
from lookout.past.erasures import Fence
from lookout.runtime.worker import WindowPlanSettings
from lookout.streams.chains import (
    ChainRange,
    EpochRecords,
    KafkaPartition,
    PartitionLog,
    PastScope,
    PlacedBlock,
    read_range,
    token_partitions,
    token_ranges,
)
from lookout.v1.verdicts_pb2 import Verdict

MOST_RECORDS: Final = 100_000
"""Maximum number of tokens.v1 records that a walk reads: five cameras for eleven hours at a stride of 2 s."""
_SLACK_MS: Final = 60_000
LAG_MS: Final = 3_600_000
"""Milliseconds after a window's end in which its records are sought if none was written within a minute,
because the fleet may have lagged behind."""
_LATE_MS: Final = 120_000


class FindError(LookoutError):
    """The records that a search needs cannot be read."""


@dataclass(slots=True)
class KafkaRecords:
    """Reads the records of one search from Kafka (`Records`). It is a context manager that keeps readers
    open.

    Attributes:
        settings: How Kafka is reached, and how windows are planned.
        planner: Plans windows with the fleet's settings.
        fence: The erased times; None: they are read from Kafka when a partition is first read.
    """

    settings: WindowPlanSettings
    planner: Planner
    fence: Fence | None = None
    _logs: dict[int, KafkaPartition] = field(default_factory=dict)
    _partitions: list[int] = field(default_factory=list)
    _lags_ms: dict[str, int] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def near(self, camera: str, begin_ms: int, end_ms: int) -> list[EpochRecords]:
        """Return a camera's epochs, with all records needed to compute the windows that end in [begin, end].

        Raises:
            FindError: Kafka does not answer, or reports an error.
        """
        lag_ms = self._lags_ms.get(camera, _SLACK_MS)
        epochs = self._near(camera, begin_ms, end_ms, lag_ms)
        if not epochs and lag_ms < LAG_MS and (epochs := self._near(camera, begin_ms, end_ms, LAG_MS)):
            self._lags_ms[camera] = LAG_MS
        return epochs

    def _near(self, camera: str, begin_ms: int, end_ms: int, lag_ms: int) -> list[EpochRecords]:
        scope = PastScope(since_ms=begin_ms, until_ms=end_ms + 1, cameras=(camera,))
        with _named("tokens.v1"):
            for partition in self._likeliest(camera):
                log = self._log(partition)
                first = log.at(begin_ms - self._reach_ms)
                stop = min(log.at(end_ms + lag_ms), first + MOST_RECORDS)
                span = ChainRange(partition, 0, stop, first)
                records = read_range(_Near(log, log.lowest), span, scope, self.planner)
                if out := [epoch for epoch in records.epochs if records.windows[epoch.stream]]:
                    return out
        return []

    def _likeliest(self, camera: str) -> list[int]:
        """Return all partitions, beginning with the one that the producer writes this key to now.

        Records written before partitions were added may be in another partition.
        """
        if not self._partitions:
            self._partitions = token_partitions(self.settings)
        home = self._partitions[zlib.crc32(camera.encode()) % len(self._partitions)]
        return [home, *(partition for partition in self._partitions if partition != home)]

    def all(self, cameras: Sequence[str], since_ms: int, until_ms: int) -> list[EpochRecords] | str:
        """Return the cameras' epochs in a time range (Unix milliseconds), or a sentence that says that there
        are too many records to read.

        Raises:
            FindError: Kafka does not answer, or reports an error.
        """
        scope = PastScope(since_ms=since_ms, until_ms=until_ms, cameras=tuple(cameras))
        with _named("tokens.v1"):
            ranges = token_ranges(self.settings, max(0, since_ms - self._reach_ms), until_ms + _SLACK_MS)
            count = sum(span.stop - span.read_from for span in ranges.values())
            if count > MOST_RECORDS:
                return (
                    f"time that no memory covers was not searched, because tokens.v1 has {count} records of "
                    f"it and the limit is {MOST_RECORDS}; search a shorter time"
                )
            out: list[EpochRecords] = []
            for partition, span in sorted(ranges.items()):
                records = read_range(self._log(partition), span, scope, self.planner)
                out += [epoch for epoch in records.epochs if records.windows[epoch.stream]]
        return out

    @property
    def _reach_ms(self) -> int:
        """How long before a window its chain's first window may begin, in milliseconds."""
        settings = self.planner.settings
        strides = settings.longest_chain + settings.blocks
        return round(1000 * strides * self.settings.stride_s) + _SLACK_MS

    def _log(self, partition: int) -> KafkaPartition:
        if partition not in self._logs:
            self._logs[partition] = self._open.enter_context(
                KafkaPartition(self.settings, partition, self.fence)
            )
        return self._logs[partition]


@dataclass(slots=True)
class _Near:
    """Reads a partition, but only those verdicts that were written within `_LATE_MS` after the newest
    block."""

    log: PartitionLog
    lowest: int
    newest_ms: int = 0

    def blocks(self, first: int, stop: int) -> tuple[Sequence[PlacedBlock], bool]:
        placed, at_end = self.log.blocks(first, stop)
        self.newest_ms = max(self.newest_ms, *(block.time_ms for block in placed), 0)
        return placed, at_end

    def verdicts(self, since_ms: int, until_ms: int) -> Iterator[Verdict]:
        yield from self.log.verdicts(since_ms, min(until_ms, self.newest_ms + _LATE_MS))


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise FindError(f"{what} cannot be read: {error}") from error
