"""Decode without Kafka: one camera's segments in, frames records out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from lookout.errors import RecordsGoneError
from lookout.pruning import Change, PrunePolicy
from lookout.rules import asks_for_outages
from lookout.rules.masks import Masks
from lookout.runtime.store import TensorStore
from lookout.runtime.worker import Output, Record, Result, StoredCheckpoint
from lookout.runtime.worker.records import Loss
from lookout.services.decode.handler import DecodeHandler
from lookout.services.decode.settings import DecodeSettings
from lookout.streams.filmed import SegmentDecoder
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.state_pb2 import Checkpoint
from lookout.video.segments import SoftwareDecoder
from lookout.wire import ALERTS, FRAMES, SEGMENTS, dead_letters, from_json, headers
from tests.changed_settings import changed_settings
from tests.streams import segments

START_MS = 1_700_000_000_000


class Segments:
    """What is in the topic, for reading again."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        assert (topic, partition) == (SEGMENTS.name, 0)
        missing = [each for each in offsets if each not in self.records]
        if missing:
            raise RecordsGoneError(f"no offset {missing}")
        return [self.records[each] for each in offsets]


class World:
    """One camera and its handler; `send` is what the worker does."""

    def __init__(self, decoder: SegmentDecoder | None = None, **more: object) -> None:
        given: dict[str, object] = {"mode": "local", "window_s": 6.0}
        if "pruning" not in more:
            given["policy"] = PrunePolicy(change=Change.VECTORS)
        kind, fields = changed_settings(DecodeSettings, **{**given, **more})
        self.settings = kind(**fields)
        self.topic = Segments()
        self.store = TensorStore(self.settings.store)
        self.now = START_MS / 1000
        self.broker_ahead_ms = 0.0  # `now` is the broker's clock
        self.partition = 0
        self.loss: Loss | None = None
        self.monotonic = 0.0
        self.masks: dict[str, bytes] = {}
        self.watches: dict[str, list[bytes]] = {}
        self.handler = DecodeHandler(
            self.settings,
            decoder or SoftwareDecoder(),
            self.store,
            self.topic,
            clock=self.clock,
            masks=Masks(self.masks.get),
            asks_for_outages=lambda *of: asks_for_outages(self.watches, 1000 * self.now, *of),
            wall_ms=lambda: 1000 * self.now - self.broker_ahead_ms,
        )
        self.state = self.handler.load("yard", None)
        self.checkpoint: Checkpoint | None = None
        self.letters: list[Output] = []  # dead letters that stand for several segments
        self.alerts: list[Alert] = []  # of the camera's health
        self.counts: Counter[str] = Counter()  # as if everything were committed

    def clock(self) -> float:
        """Monotonic seconds; every look at the clock takes a millisecond."""
        self.monotonic += 0.001
        return self.monotonic

    def send(self, value: bytes, after_ms: int = 2000, **headers: str) -> list[FramesRecord]:
        """Handle one segment that Kafka got so long after the one before."""
        offset = len(self.topic.records)
        self.now += after_ms / 1000
        pairs = tuple((name.replace("_", "-"), text.encode()) for name, text in headers.items())
        at = round(self.now * 1000)
        record = Record(SEGMENTS.name, self.partition, offset, "yard", value, pairs, at, loss=self.loss)
        self.topic.records[offset] = record
        return self.take(self.handler.handle(self.state, record))

    def notice(self, partition: str) -> Result:
        """Handle the notice that the camera is in another partition."""
        at = round(self.now * 1000)
        pairs = ((headers.MOVED, partition.encode()),)
        record = Record(SEGMENTS.name, self.partition, len(self.topic.records), "yard", b"", pairs, at)
        return self.handler.handle(self.state, record)

    def again(self) -> list[FramesRecord]:
        """Try the newest segment once more."""
        return self.take(self.handler.handle(self.state, self.topic.records[max(self.topic.records)]))

    def take(self, result: Result | None) -> list[FramesRecord]:
        assert result is not None
        if result.checkpoint is not None:
            self.checkpoint = result.checkpoint
        assert set(result.counts) <= set(self.handler.events)
        self.counts.update(result.counts)
        letters = [output for output in result.outputs if output.topic == dead_letters(SEGMENTS).name]
        outputs = [output for output in result.outputs if output.topic == FRAMES.name]
        alerts = [output for output in result.outputs if output.topic == ALERTS.name]
        assert len(letters) + len(outputs) + len(alerts) == len(result.outputs)
        self.alerts += [from_json(output.value or b"", Alert) for output in alerts]
        self.letters += letters
        return [FramesRecord.FromString(output.value or b"") for output in outputs]

    def wait(self, seconds: float) -> list[FramesRecord]:
        """Let time pass, two ticks a second."""
        found = []
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            result = self.handler.tick(self.state, self.now)
            found += self.take(result) if result is not None else []
        return found

    def takeover(self, *, changed: bool = False) -> None:
        """Another worker begins with the checkpoint."""
        assert self.checkpoint is not None
        assert self.checkpoint.ByteSize() < 6144
        again = Checkpoint.FromString(self.checkpoint.SerializeToString())
        self.state = self.handler.load("yard", StoredCheckpoint(again, 0, changed))


@cache
def pieces() -> list[bytes]:
    """Eight seconds of a camera, cut at their keyframes."""
    return segments(8.0)


def samples(records: Sequence[FramesRecord]) -> list[int]:
    """Grid points in order."""
    return [frame.sample for record in records for frame in record.segment.frames]
