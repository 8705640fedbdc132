"""Runs made of real wire messages, without a broker: what the page and the collector are tried on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lookout.cli.report.run import FleetRecord
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.frames_pb2 import Frame, FramesRecord, Picture, SegmentFacts, SegmentFrames
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, StreamEvent, TensorRef
from lookout.v1.tokens_pb2 import BlockFrame, StrideBlock, TemporalPatch, TokensRecord
from lookout.v1.verdicts_pb2 import Cost, Evidence, Verdict
from lookout.v1.watches_pb2 import Rule
from lookout.wire import ALERTS, FRAMES, SEGMENTS, TOKENS, VERDICTS, to_json
from tests.clock import at

SECOND = 1_000_000
STRIDE, WINDOW, SIDE = 2, 10, 4
WALL_MS = 1_700_000_000_000


@dataclass
class FakeMessage:
    """A Kafka record as the client hands it over."""

    name: str
    data: bytes | None
    at: int = 0
    who: str = "camera"
    head: tuple[tuple[str, bytes], ...] = ()

    def topic(self) -> str:
        return self.name

    def value(self) -> bytes | None:
        return self.data

    def key(self) -> bytes:
        return self.who.encode()

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self.head)


def camera_records(
    camera: str, seconds: int, watches: dict[str, tuple[float, float]]
) -> Iterable[FakeMessage]:
    """A camera in segments of 2 s: each watch is true between its two moments; then the stream ends."""
    blocks = seconds // STRIDE
    for k in range(blocks):
        yield FakeMessage(FRAMES.name, frames(camera, k).SerializeToString(), k, camera)
        yield FakeMessage(TOKENS.name, tokens(camera, k).SerializeToString(), k, camera)
        for watch, (begin, end) in watches.items():
            yield FakeMessage(
                VERDICTS.name, to_json(verdict(camera, watch, k, p_of(k, begin, end))), k, camera
            )
    gap = StreamEvent(
        kind=StreamEvent.KIND_GAP, start_us=seconds * SECOND, end_us=seconds * SECOND, reason="silence"
    )
    yield FakeMessage(FRAMES.name, FramesRecord(camera=camera, event=gap).SerializeToString(), blocks, camera)
    for watch, (begin, end) in watches.items():
        closing = verdict(camera, watch, blocks, 0.0)
        closing.outcome, closing.reason = Verdict.OUTCOME_GAP, "silence"
        yield FakeMessage(VERDICTS.name, to_json(closing), blocks, camera)
        if end > begin:
            yield from incident(camera, watch, begin, end)


def p_of(k: int, begin: float, end: float) -> float:
    """p(yes) of window k: high while the window overlaps the truth."""
    overlap = min((k + 1) * STRIDE, end) - max((k + 1) * STRIDE - WINDOW, begin)
    return 1 / (1 + math.exp(-1.6 * (overlap - 1.0))) if end > begin else 0.03 + 0.02 * math.sin(k)


def frames(camera: str, k: int) -> FramesRecord:
    body = SegmentFrames(
        segment=RecordRef(topic=SEGMENTS.name, partition=0, offset=k),
        start_us=k * STRIDE * SECOND,
        end_us=(k + 1) * STRIDE * SECOND,
        frames=[Frame(time_us=(4 * k + i) * SECOND // 2, sample=4 * k + i, index=6 * i) for i in range(4)],
        pixels=TensorRef(id=f"frames/{camera}/{k}", stage=STAGE_FRAMES, camera=camera),
        picture=Picture(coded_width=448, coded_height=448, width=112, height=112, patch=14, rows=8, cols=8),
        facts=SegmentFacts(codec="h264", decoded=25, container="mpegts"),
    )
    return FramesRecord(camera=camera, epoch=0, wall_offset_us=WALL_MS * 1000, segment=body)


def tokens(camera: str, k: int) -> TokensRecord:
    patches = []
    for i in range(4):
        keep = np.ones((SIDE, SIDE), bool) if i == 0 else mask(4 * k + i)
        bits = np.packbits(keep.ravel(), bitorder="little").tobytes()
        patches.append(TemporalPatch(frames=[i], anchor=i == 0, keep=bits, kept=int(keep.sum())))
    block = StrideBlock(
        index=k,
        start_us=k * STRIDE * SECOND,
        end_us=(k + 1) * STRIDE * SECOND,
        frames=[
            BlockFrame(time_us=(4 * k + i) * SECOND // 2, sample=4 * k + i, input=0, row=i) for i in range(4)
        ],
        patches=patches,
        group_rows=SIDE,
        group_cols=SIDE,
        inputs=[RecordRef(topic=FRAMES.name, partition=0, offset=k)],
        patches_total=4 * 64,
        patches_encoded=sum(4 * patch.kept for patch in patches),
    )
    return TokensRecord(camera=camera, epoch=0, block=block)


def mask(sample: int) -> np.ndarray:
    """A patch of movement that wanders through the picture."""
    keep = np.zeros((SIDE, SIDE), bool)
    column, row = sample // 3 % SIDE, 1 + sample // 7 % (SIDE - 2)
    keep[row : row + 2, column : column + 2] = True
    return keep


def verdict(camera: str, watch: str, k: int, p: float) -> Verdict:
    kept = sum(patch.kept for j in range(max(0, k - 4), k + 1) for patch in tokens(camera, j).block.patches)
    total = (min(k, 4) + 1) * 4 * SIDE * SIDE
    start = max(0, (k + 1) * STRIDE - WINDOW)
    return Verdict(
        id=f"{camera}/{watch}/{k}",
        camera=camera,
        window=k,
        stream_start_s=start,
        stream_end_s=(k + 1) * STRIDE,
        start=at(WALL_MS + start * 1000),
        end=at(WALL_MS + (k + 1) * STRIDE * 1000),
        watch=watch,
        watch_version=1,
        question=question_of(watch),
        outcome=Verdict.OUTCOME_ANSWERED,
        p_yes=p,
        basis="full",
        cost=Cost(tokens_total=total, tokens_kept=kept, flops_prefill=kept * 10, flops_dense=total * 12),
        rule=Rule(threshold=0.5, k=2, n=3),
    )


def question_of(watch: str) -> str:
    return f"Is there {watch.replace('-', ' ')}?"


def incident(camera: str, watch: str, begin: float, end: float) -> Iterable[FakeMessage]:
    alert = Alert(
        id=f"{camera}/{watch}",
        incident=f"{camera}-{watch}",
        kind=Alert.KIND_OPENED,
        camera=camera,
        watch=watch,
        question=question_of(watch),
        score=0.91,
        peak=0.91,
        start=at(WALL_MS + round(begin * 1000)),
        end=at(WALL_MS + round(begin * 1000) + 2000),
        windows=2,
        evidence=[Evidence(time=at(WALL_MS + round((begin + 1) * 2) * 500))],
    )
    yield FakeMessage(ALERTS.name, to_json(alert), 0, camera)
    alert.kind, alert.reason = Alert.KIND_CLOSED, "cleared"
    alert.score, alert.peak = 0.1, 0.97
    alert.end.FromMilliseconds(WALL_MS + round(end * 1000))
    yield FakeMessage(ALERTS.name, to_json(alert), 1, camera)


def example_run() -> FleetRecord:
    """Two cameras with incidents."""
    run = FleetRecord()
    for camera, length, watches in (
        ("room", 48, {"someone-lying": (15.0, 34.0), "a-person": (5.0, 41.0), "a-vehicle": (0.0, 0.0)}),
        ("yard", 40, {"someone-lying": (0.0, 0.0), "a-person": (20.0, 29.0), "a-vehicle": (9.0, 14.0)}),
    ):
        for message in camera_records(camera, length, watches):
            run.take(message)  # type: ignore[arg-type]
    return run
