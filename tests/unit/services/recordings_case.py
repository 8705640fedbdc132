"""The three services of recordings in one process: records of a topic are a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookout.past.backtests.answers import hidden_by
from lookout.past.erasures import Fence
from lookout.recordings.analysis import Analyzer
from lookout.recordings.jobs import Sources
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.worker import DeadLetter, Handler, Record, Result, StoredCheckpoint
from lookout.services.recordings.past import PastParts
from lookout.services.recordings.planning import PlanHandler
from lookout.services.recordings.quotas import JobQuota, RunningJobs
from lookout.services.recordings.reducing import ReduceHandler
from lookout.services.recordings.running import PartsHandler
from lookout.streams.chains import ChainRange
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.wire import ANSWERS, RECORDING_PARTS, RECORDING_RESULTS, RECORDINGS, from_json, to_json

PARTITIONS = 3
NOW_MS = 1_700_000_000_000


class FakeTopics:
    """Records by topic, in one order; reads them again as the runtime's reader does."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.reads = 0

    def write(self, result: Result, partition: int) -> list[Record]:
        """Append a result's outputs."""
        return [
            self.add(
                output.topic,
                output.key,
                output.value or b"",
                partition if output.partition is None else output.partition,
            )
            for output in result.outputs
        ]

    def add(self, topic: str, key: str, value: bytes, partition: int = 1) -> Record:
        """Append one record."""
        records = self.records.setdefault(topic, [])
        records.append(Record(topic, partition, len(records), key, value, timestamp_ms=NOW_MS))
        return records[-1]

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        """The records at `offsets`."""
        self.reads += 1
        found = [self.records[topic][offset] for offset in offsets]
        assert {record.partition for record in found} <= {partition}
        return found


@dataclass
class Running:
    """A service that loses its state before every record: what it knows is in its checkpoints."""

    handler: Handler[Any]
    topics: FakeTopics
    checkpoints: dict[str, StoredCheckpoint] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    read: int = 0

    def handle(self, record: Record) -> Result:
        """One record, committed."""
        from lookout.errors import BadRecordError

        state = self.handler.load(record.camera, self.checkpoints.get(record.camera))
        try:
            result = self.handler.handle(state, record)
        except BadRecordError as error:
            letter = DeadLetter(error.reason, error.detail)
            self.letters.append(letter)
            result = self.handler.rejected(state, record, letter) or Result()
        self._commit(record.camera, record.partition, result)
        return result

    def tick(self, key: str, now: float) -> Result | None:
        """Time passes."""
        stored = self.checkpoints.get(key)
        result = self.handler.tick(self.handler.load(key, stored), now)
        if result is not None:
            assert stored is not None
            self._commit(key, stored.partition, result)
        return result

    def catch_up(self, topic: str) -> None:
        """Every record that was not read yet."""
        records = self.topics.records.get(topic, [])
        while self.read < len(records):
            self.read += 1
            self.handle(records[self.read - 1])

    def _commit(self, key: str, partition: int, result: Result) -> None:
        self.topics.write(result, partition)
        if result.checkpoint is not None:
            self.checkpoints[key] = StoredCheckpoint(result.checkpoint, partition)


class FakeTable:
    """The checkpoints of a service, as a table over its topic has them."""

    def __init__(self, service: Running) -> None:
        self._service = service

    def changes(self) -> set[str]:
        """All jobs."""
        return set(self._service.checkpoints)

    def newest(self, key: str) -> bytes | None:
        """A job's checkpoint."""
        stored = self._service.checkpoints.get(key)
        return None if stored is None else stored.checkpoint.SerializeToString()


class Services:
    """All three.

    Args:
        analyzer: The model.
        root: Folder that may be read.
        past: Runs parts of back-tests.
        ranges: What tokens.v1 has, by partition.
        most_parts: Parts of a tenant that wait or run at a time.
        quotas: By tenant.
    """

    def __init__(
        self,
        analyzer: Analyzer,
        root: Path,
        past: PastParts | None = None,
        ranges: Mapping[int, ChainRange] | None = None,
        *,
        most_parts: int = 100,
        quotas: Mapping[str, JobQuota] | None = None,
    ) -> None:
        self.topics = FakeTopics()
        self.cancelled: set[str] = set()
        self.now = NOW_MS / 1000
        fetcher = UriFetcher(
            ("http",), ("*.example",), ("127.0.0.0/8",), resolver=lambda host, port: ["127.0.0.1"]
        )
        sources = Sources([root], fetcher=fetcher)
        self.parts_handler = PartsHandler(
            analyzer,
            sources,
            partitions=PARTITIONS,
            model_digest="digest",
            cancelled=lambda job: job in self.cancelled,
            past=past,
            decoders=1,
            clock=lambda: self.now,
        )
        self.parts = Running(self.parts_handler, self.topics)
        self.fence = Fence()
        reduce = ReduceHandler(
            self.topics,
            partitions=PARTITIONS,
            most_parts=most_parts,
            hidden=lambda: hidden_by(self.fence),
            clock=lambda: self.now,
        )
        self.reduce = Running(reduce, self.topics)
        self.plan_handler = PlanHandler(
            self.topics,
            analyzer.folder,
            analyzer.part_frames,
            sources,
            stride_s=1.0,
            quotas=quotas,
            running_jobs=RunningJobs(FakeTable(self.reduce)),
            ranges=lambda since_ms, until_ms: ranges or {},
            patience_s=120.0,
        )
        self.plan = Running(self.plan_handler, self.topics)

    def ask(self, job: RecordingJob) -> None:
        """Send a request, plan it and write its first parts."""
        self.topics.add(RECORDINGS.name, job.id, to_json(job))
        self.plan.catch_up(RECORDINGS.name)
        self.reduce.catch_up(RECORDING_RESULTS.name)

    def work(self) -> None:
        """Run everything that waits, and what comes of it."""
        self.reduce.catch_up(RECORDING_RESULTS.name)
        while self.parts.read < len(self.topics.records.get(RECORDING_PARTS.name, [])):
            self.parts.catch_up(RECORDING_PARTS.name)
            self.reduce.catch_up(RECORDING_RESULTS.name)

    def answers(self, job: str) -> RecordingAnswers:
        """The newest record of a job's answers."""
        newest = [record for record in self.topics.records[ANSWERS.name] if record.camera == job][-1]
        return from_json(newest.value, RecordingAnswers)
