"""Prune-encode without Kafka: one camera's frames records in, stride blocks out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from lookout.errors import RecordsGoneError
from lookout.models.families import load_tower
from lookout.pruning import Accumulation, Change, PrunePolicy, keeping_everything
from lookout.runtime.store import (
    Fetched,
    LineageBrokenError,
    TensorNotMadeError,
    TensorStore,
    TensorUnavailableError,
)
from lookout.runtime.worker import Record, Result, StoredCheckpoint
from lookout.services.prune_encode.encoder import Encoder
from lookout.services.prune_encode.handler import PruneEncodeHandler
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.v1.frames_pb2 import Frame, FramesRecord, Picture
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, Sampling, StreamEvent, TensorRef
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.wire import FRAMES, TOKENS
from tests.changed_settings import changed_settings
from tests.tiny_models import checkpoint

STEP = 500_000


WALL = 1_700_000_000_000_000


@cache
def encoder(family: str) -> Encoder:
    """One tower for all tests."""
    return Encoder(load_tower(checkpoint(family)), 64)


class Pixels:
    """Stands for decode: gives rows of the pixels a record names; can be away, or have lost a record."""

    def __init__(self) -> None:
        self.away = self.unmade = False
        self.lost: set[str] = set()
        self.noise = 0.0  # grey levels

    def fetch(self, ref: TensorRef, record: Any, rows: Sequence[tuple[int, int]] | None = None) -> Fetched:
        if self.away:
            raise TensorUnavailableError(ref.id)
        if self.unmade:
            raise TensorNotMadeError(ref.id)
        if ref.id in self.lost:
            raise LineageBrokenError(ref.id)
        (first, last), *_ = rows or [(0, ref.shape[0])]
        samples = [frame.sample for frame in record.segment.frames][first:last]
        pictures = [picture(n, ref.shape[1], ref.shape[2], self.noise) for n in samples]
        return Fetched(np.stack(pictures), "peer")


def picture(sample: int, height: int, width: int, noise: float = 0.0) -> np.ndarray:
    """A still room with a camera's noise; a bright patch moves one patch to the right with every sample."""
    out = np.random.default_rng(0).integers(80, 120, (height, width, 3), np.uint8)
    out += np.random.default_rng(sample).normal(noise, noise, out.shape).clip(0, 60).astype(np.uint8)
    at = sample % 8 * 14
    out[:14, at : at + 14] = 250
    return out


class Topic:
    """frames.v1, for reading again."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        assert (topic, partition) == (FRAMES.name, 0)
        if missing := [each for each in offsets if each not in self.records]:
            raise RecordsGoneError(f"no offset {missing}")
        return [self.records[each] for each in offsets]


VECTORS = PrunePolicy(change=Change.VECTORS, accumulation=Accumulation.SINCE_ANCHOR)


class World:
    """One camera and its handler."""

    def __init__(self, family: str = "internvl", **more: object) -> None:
        given: dict[str, object] = {"mode": "local", "window_s": 6.0}
        if not {"policy", "pruning", "anchor_samples"} & more.keys():
            given["policy"] = VECTORS if more.get("prune", True) else keeping_everything(VECTORS)
        kind, fields = changed_settings(PruneEncodeSettings, **{**given, **more})
        self.settings = kind(**fields)
        self.pixels, self.topic = Pixels(), Topic()
        self.store = TensorStore(self.settings.store)
        self.now = 0.0
        self.handler = PruneEncodeHandler(
            self.settings,
            encoder(family),
            self.store,
            self.pixels,  # type: ignore[arg-type]
            self.topic,
            model_digest="m0",
            clock=lambda: self.now,
        )
        self.grid = encoder(family).tower.grid
        self.state = self.handler.load("yard", None)
        self.checkpoint = Checkpoint()
        self.counts: Counter[str] = Counter()  # as if everything were committed
        self.made = 0

    def frames(
        self,
        samples: Sequence[int],
        start: float,
        end: float,
        *,
        epoch: int = 1,
        corrupt: Sequence[int] = (),
        sampling: Sampling | None = None,
    ) -> FramesRecord:
        """A segment of `start` to `end` seconds with these samples; what moves is the top row."""
        grid = self.grid
        record = FramesRecord(camera="yard", epoch=epoch, wall_offset_us=WALL)
        record.sampling.CopyFrom(sampling or self.settings.sampling)
        body = record.segment
        offset, self.made = self.made, self.made + 1
        body.segment.CopyFrom(RecordRef(topic="camera.segments.v1", partition=0, offset=1000 + offset))
        body.start_us, body.end_us = round(start * 1e6), round(end * 1e6)
        for index, sample in enumerate(samples):
            v = np.zeros((grid.rows, grid.cols), "<f2")
            v[0, sample % grid.cols] = 5.0
            first = index == 0
            body.frames.add(
                time_us=sample * STEP,
                sample=sample,
                index=index,
                key=first,
                picture_type="I" if first else "P",
                corrupt=sample in corrupt,
                basis=Frame.BASIS_LUMA if first or sample in corrupt else Frame.BASIS_VECTORS,
                motion=b"" if first or sample in corrupt else v.tobytes(),
            )
        body.picture.CopyFrom(
            Picture(width=grid.width, height=grid.height, patch=grid.patch, rows=grid.rows, cols=grid.cols)
        )
        if samples:
            shape = [len(samples), grid.height, grid.width, 3]
            ref = TensorRef(
                id=f"pixels/{epoch}/{offset}",
                stage=STAGE_FRAMES,
                camera="yard",
                epoch=epoch,
                shape=shape,
                dtype="uint8",
                length=math.prod(shape),
            )
            body.pixels.CopyFrom(ref)
        return record

    def event(self, kind: StreamEvent.Kind, at: float, epoch: int = 1) -> FramesRecord:
        """Something that happened to the stream."""
        us = round(at * 1e6)
        event = StreamEvent(kind=kind, start_us=us, end_us=us, reason="silence")
        return FramesRecord(camera="yard", epoch=epoch, wall_offset_us=WALL, event=event)

    def send(self, message: FramesRecord) -> list[TokensRecord]:
        """Handle one record."""
        offset = len(self.topic.records)
        record = Record(FRAMES.name, 0, offset, "yard", message.SerializeToString())
        self.topic.records[offset] = record
        return self.take(self.handler.handle(self.state, record))

    def take(self, result: Result) -> list[TokensRecord]:
        if result.checkpoint is not None:
            self.checkpoint = result.checkpoint
            assert self.checkpoint.ByteSize() <= 1024
        assert all(output.topic == TOKENS.name for output in result.outputs)
        assert set(result.counts) <= set(self.handler.events)
        self.counts.update(result.counts)
        records = [TokensRecord.FromString(output.value or b"") for output in result.outputs]
        for record in records:  # a measured time is another one in each run
            assert (record.block.tower_us > 0) == any(patch.kept for patch in record.block.patches)
            if record.HasField("block"):
                record.block.ClearField("tower_us")
        return records

    def takeover(self, *, changed: bool = False) -> None:
        """Another worker begins with the checkpoint."""
        again = Checkpoint.FromString(self.checkpoint.SerializeToString())
        self.state = self.handler.load("yard", StoredCheckpoint(again, 0, changed))

    def stream(self) -> list[FramesRecord]:
        """16 samples in segments of 3 s that do not end where blocks do."""
        made = []
        for first in range(0, 16, 6):
            samples = list(range(first, min(16, first + 6)))
            made.append(self.frames(samples, first / 2, samples[-1] / 2 + 0.5))
        return made


def indices(records: Sequence[TokensRecord]) -> list[int]:
    """Block indices."""
    return [record.block.index for record in records if record.HasField("block")]
