"""Gathers the page's data about a run from the topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from confluent_kafka import Message

from lookout.runtime.worker.record_reader import record_of
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.labels_pb2 import Label
from lookout.v1.lineage_pb2 import RecordRef, StreamEvent
from lookout.v1.tokens_pb2 import StrideBlock, TokensRecord
from lookout.v1.verdicts_pb2 import Cost, Verdict
from lookout.video.motion import unpack_mask
from lookout.wire import (
    ALERTS,
    FRAMES,
    PIPELINE,
    SEGMENTS,
    TOKENS,
    VERDICTS,
    WireError,
    dead_letters,
    received,
)
from lookout.wire.headers import DETAIL, REASON, SOURCE_OFFSET, SOURCE_PARTITION, number, text

Place = tuple[str, int, int]

_MESSAGES = (FRAMES.name, TOKENS.name, VERDICTS.name, ALERTS.name)
TOPICS = (
    *_MESSAGES,
    *(flow.dead_letters.name for flow in PIPELINE.values()),
)


def place_of(ref: RecordRef) -> Place:
    return ref.topic, ref.partition, ref.offset


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceFrame:
    """A frame that the model saw. It says where the pixels are, and which merge groups were computed (`keep`:
    bool [rows, cols] on the grid of merge groups).
    """

    epoch: int
    time_us: int
    window: int  # the window whose newest block contains it
    anchor: bool
    keep: npt.NDArray[np.bool_]
    input: Place  # place of its frames record
    row: int  # index into that record's pixels


@dataclass(frozen=True, slots=True)
class Point:
    """A window's outcome for a watch."""

    epoch: int
    window: int
    start_us: int
    end_us: int
    outcome: int
    p_yes: float
    reason: str
    coverage: float


@dataclass(slots=True)
class ReportedIncident:
    """An incident, from its newest alert."""

    id: str
    watch: str
    question: str
    epoch: int
    raised_wall_ms: int  # the end of the window that raised it
    end_wall_ms: int
    peak: float
    score: float
    closed: str | None = None
    evidence: list[int] = field(default_factory=list)  # stream times of its best frames


@dataclass(slots=True)
class UnusedRecord:
    """A record that the fleet could not use."""

    camera: str
    topic: str
    reason: str
    detail: str


@dataclass(slots=True)
class CameraRun:
    """Everything about one camera."""

    id: str
    shots: list[EvidenceFrame] = field(default_factory=list)
    points: dict[str, list[Point]] = field(default_factory=dict)  # by watch
    costs: dict[tuple[int, int], Cost] = field(default_factory=dict)  # by epoch and window
    question_flops: dict[tuple[int, int, str], int] = field(
        default_factory=dict
    )  # by epoch, window and watch
    incidents: dict[str, ReportedIncident] = field(default_factory=dict)
    frames: dict[Place, FramesRecord] = field(default_factory=dict)
    segments: set[Place] = field(default_factory=set)  # those with frames, an event or a dead letter
    dead: list[UnusedRecord] = field(default_factory=list)
    decoded: int = 0
    corrupt: int = 0
    patches_total: int = 0
    patches_encoded: int = 0
    epochs: dict[int, int] = field(default_factory=dict)  # stream time seen, by epoch
    walls_us: dict[int, int] = field(default_factory=dict)  # wall clock of stream time 0, by epoch
    decided_us: dict[int, int] = field(default_factory=dict)  # stream time decided, by epoch
    closed_frames: set[int] = field(default_factory=set)  # epochs that ended in frames.v1
    closed_watches: dict[int, set[str]] = field(default_factory=dict)  # watches with a gap verdict, by epoch
    codec: str = ""
    begin_ms: int | None = None  # Unix milliseconds of the axis' begin, if the axis is the wall clock

    @property
    def seconds(self) -> float:
        """Seconds of footage that decode accepted."""
        return sum(self.epochs.values()) / 1e6

    @property
    def windows(self) -> int:
        """Number of windows with at least one answer."""
        return len(
            {
                (point.epoch, point.window)
                for points in self.points.values()
                for point in points
                if point.outcome == Verdict.OUTCOME_ANSWERED
            }
        )

    @property
    def tokens(self) -> tuple[int, int]:
        """Number of kept tokens and of the dense windows' tokens, over all windows."""
        return sum(c.tokens_kept for c in self.costs.values()), sum(
            c.tokens_total for c in self.costs.values()
        )

    def stream_us(self, epoch: int, wall_ms: int) -> int:
        """Return the stream time of a moment on the wall clock, in microseconds."""
        return max(0, wall_ms * 1000 - self.walls_us.get(epoch, wall_ms * 1000))

    def finished(self, watches: Iterable[str]) -> bool:
        """Whether every epoch has ended for every watch."""
        expected = set(watches)
        return set(self.epochs) <= self.closed_frames and all(
            expected <= self.closed_watches.get(epoch, set()) for epoch in self.epochs
        )


@dataclass(slots=True)
class FleetRecord:
    """Cameras by id, filled record by record with `take`."""

    cameras: dict[str, CameraRun] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)  # by watch
    thresholds: dict[str, float] = field(default_factory=dict)  # by watch
    events: int = 0
    untrained: set[str] = field(default_factory=set)  # watches whose question the model was not trained for
    labels: dict[str, Label] = field(default_factory=dict)  # people's labels, by incident

    def camera(self, identity: str) -> CameraRun:
        return self.cameras.setdefault(identity, CameraRun(identity))

    def take(self, message: Message) -> Alert | UnusedRecord | None:
        """Add a record of any of `TOPICS`. Return it for a live display if it is an alert or an unusable
        record; otherwise None.
        """
        self.events += 1
        topic = message.topic()
        if topic not in _MESSAGES:
            return self._dead(message)
        record = record_of(message)
        try:
            if topic == FRAMES.name:
                self._frames(received(FramesRecord, record), (topic, record.partition, record.offset))
            elif topic == TOKENS.name:
                self._tokens(received(TokensRecord, record))
            elif topic == VERDICTS.name:
                self._verdict(received(Verdict, record))
            else:
                return self._alert(received(Alert, record))
        except WireError:
            return None
        return None

    def _frames(self, record: FramesRecord, place: Place) -> None:
        camera = self.camera(record.camera)
        if record.WhichOneof("body") == "event":
            if record.event.HasField("segment"):
                camera.segments.add(place_of(record.event.segment))
            if record.event.kind == StreamEvent.KIND_GAP:
                camera.closed_frames.add(record.epoch)
            return
        segment = record.segment
        camera.segments.add(place_of(segment.segment))
        camera.frames[place] = record
        camera.decoded += segment.facts.decoded
        camera.corrupt += segment.facts.corrupt
        camera.codec = segment.facts.codec or camera.codec
        camera.walls_us[record.epoch] = record.wall_offset_us
        camera.epochs[record.epoch] = max(camera.epochs.get(record.epoch, 0), segment.end_us)

    def _tokens(self, record: TokensRecord) -> None:
        if record.WhichOneof("body") != "block":
            return
        camera, block = self.camera(record.camera), record.block
        camera.shots.extend(shots_of(block, record.epoch))
        camera.patches_total += block.patches_total
        camera.patches_encoded += block.patches_encoded

    def _verdict(self, verdict: Verdict) -> None:
        camera = self.camera(verdict.camera)
        self.questions.setdefault(verdict.watch, verdict.question)
        self.thresholds[verdict.watch] = verdict.rule.threshold or 0.5
        if verdict.untrained:
            self.untrained.add(verdict.watch)
        if verdict.outcome == Verdict.OUTCOME_GAP:
            camera.closed_watches.setdefault(verdict.epoch, set()).add(verdict.watch)
        if verdict.HasField("cost"):
            window = verdict.epoch, verdict.window
            camera.costs[window] = verdict.cost
            camera.question_flops[*window, verdict.watch] = verdict.cost.flops_question
        decided = camera.decided_us.get(verdict.epoch, 0)
        start_us, end_us = round(verdict.stream_start_s * 1e6), round(verdict.stream_end_s * 1e6)
        camera.decided_us[verdict.epoch] = max(decided, end_us)
        camera.points.setdefault(verdict.watch, []).append(
            Point(
                verdict.epoch,
                verdict.window,
                start_us,
                end_us,
                verdict.outcome,
                verdict.p_yes,
                verdict.reason,
                verdict.coverage,
            )
        )

    def _alert(self, alert: Alert) -> Alert | None:
        if alert.kind in {Alert.KIND_REPORT, Alert.KIND_TEST}:
            return None
        camera, end_ms = self.camera(alert.camera), alert.end.ToMilliseconds()
        incidents = camera.incidents
        if alert.kind == Alert.KIND_OPINION:  # does not change the incident, which may be closed
            return alert
        earlier = incidents.get(alert.incident)
        incident = ReportedIncident(
            alert.incident,
            alert.watch,
            alert.question,
            alert.epoch,
            earlier.raised_wall_ms if earlier else end_ms,
            max(end_ms, earlier.end_wall_ms if earlier else 0),
            max(alert.peak, earlier.peak if earlier else 0.0),
            alert.score,
            closed=alert.reason if alert.kind == Alert.KIND_CLOSED else None,
            evidence=[
                camera.stream_us(alert.epoch, evidence.time.ToMilliseconds()) for evidence in alert.evidence
            ]
            or (earlier.evidence if earlier else []),
        )
        incidents[alert.incident] = incident
        return alert

    def _dead(self, message: Message) -> UnusedRecord:
        identity = (message.key() or b"").decode(errors="replace")
        headers = record_of(message).headers
        letter = UnusedRecord(
            identity, message.topic(), text(headers, REASON) or "unknown", text(headers, DETAIL) or ""
        )
        camera = self.camera(identity)
        camera.dead.append(letter)
        if message.topic() == dead_letters(SEGMENTS).name:
            partition, offset = number(headers, SOURCE_PARTITION), number(headers, SOURCE_OFFSET)
            if partition is not None and offset is not None:
                camera.segments.add((SEGMENTS.name, partition, offset))
        return letter


def shots_of(block: StrideBlock, epoch: int) -> list[EvidenceFrame]:
    """Return the frames of a block, each with the merge groups that were computed.

    Raises:
        WireError: A mask or an index does not fit the block.
    """
    try:
        return list(_shots(block, epoch))
    except (ValueError, IndexError) as error:
        raise WireError(f"not a valid block of tokens: {error}") from error


def _shots(block: StrideBlock, epoch: int) -> Iterator[EvidenceFrame]:
    rows, cols = block.group_rows, block.group_cols
    for patch in block.patches:
        keep = unpack_mask(patch.keep, rows, cols)
        for index in sorted(set(patch.frames)):
            frame = block.frames[index]
            place = place_of(block.inputs[frame.input])
            yield EvidenceFrame(epoch, frame.time_us, block.index, patch.anchor, keep, place, frame.row)
