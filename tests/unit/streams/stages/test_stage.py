"""A keyed stage: nothing of a failed record remains, and a restored unit equals an uninterrupted one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from lookout.errors import BadRecordError, RecordsGoneError
from lookout.runtime.store import StoreSettings, TensorStore
from lookout.runtime.worker import DeadLetter, Record, StoredCheckpoint
from lookout.streams.stages import Camera, Draft, ProducingStage, reference_of
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef
from lookout.v1.state_pb2 import Checkpoint, PruneState


@dataclass(frozen=True)
class Sum:
    """A unit of three records: their sum is written when it closes."""

    values: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()


class SumStage(ProducingStage[Sum]):
    """Puts every value into the store; a negative value fails after it was put there."""

    source_topic = "in"

    def begin(self, camera: str) -> Sum:
        return Sum()

    def restore(self, camera: str, stored: StoredCheckpoint) -> Sum:
        return Sum(offsets=tuple(stored.checkpoint.prune.offsets))

    def offsets(self, stored: StoredCheckpoint) -> Sequence[int]:
        return stored.checkpoint.prune.offsets

    def resume(self, unit: Sum, records: Sequence[Record], stored: StoredCheckpoint) -> Sum:
        return replace(unit, values=tuple(int(record.value) for record in records))

    def join(self, camera: Camera[Sum], record: Record, draft: Draft) -> Sum | None:
        value = int(record.value)
        if not value:
            draft.counts["zeros"] += 1
            return None
        ref = TensorRef(
            id=f"t{record.offset}", camera=camera.camera, stage=STAGE_FRAMES, input=reference_of(record)
        )
        ref = self.put(draft, ref, np.full(4, value, np.int64), 1.0)
        if value < 0:
            raise BadRecordError("negative", "as asked")
        unit = Sum((*camera.unit.values, value), (*camera.unit.offsets, record.offset))
        if len(unit.values) < 3:
            return unit
        draft.write("out", camera.camera, PruneState(block=sum(unit.values)), [ref])
        return Sum()

    def turn_down(self, camera: Camera[Sum], record: Record, reason: DeadLetter, draft: Draft) -> Sum | None:
        return Sum() if reason.reason == "negative" else None

    def checkpoint(self, unit: Sum) -> Checkpoint:
        return Checkpoint(prune=PruneState(offsets=unit.offsets))


class Topic:
    """Records in memory; `first` is the oldest that is left."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.first = 0

    def add(self, value: int) -> Record:
        self.records.append(Record("in", 0, len(self.records), "cam", str(value).encode()))
        return self.records[-1]

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        wanted = list(offsets)
        if min(wanted) < self.first:
            raise RecordsGoneError("gone")
        return [self.records[offset] for offset in wanted]


def stage_of(topic: Topic) -> SumStage:
    settings = StoreSettings(memory_bytes=1 << 16, unread_bytes=1 << 16)
    return SumStage(TensorStore(settings), topic)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_unit_that_was_restored_gives_what_one_that_went_on_gives(restarts: bool) -> None:
    topic = Topic()
    stage = stage_of(topic)
    camera, written = stage.load("cam", None), []
    for value in range(1, 8):
        result = stage.handle(camera, topic.add(value))
        written += [PruneState.FromString(output.value or b"").block for output in result.outputs]
        assert result.checkpoint is not None
        if restarts:
            stage = stage_of(topic)
            camera = stage.load("cam", StoredCheckpoint(result.checkpoint, 0))
    assert written == [6, 15]
    assert camera.unit == Sum((7,), (6,))


def test_a_record_that_fails_leaves_the_unit_and_the_store_as_they_were() -> None:
    topic = Topic()
    stage = stage_of(topic)
    camera = stage.load("cam", None)
    stage.handle(camera, topic.add(1))
    before, unread = camera.unit, stage._store.unread_bytes("cam")
    bad = topic.add(-1)
    with pytest.raises(BadRecordError):
        stage.handle(camera, bad)
    assert camera.unit is before
    assert stage._store.unread_bytes("cam") == unread > 0
    result = stage.rejected(camera, bad, DeadLetter("negative"))
    assert result is not None
    assert result.checkpoint == Checkpoint(prune=PruneState())
    assert camera.unit == Sum()
    assert stage.rejected(camera, bad, DeadLetter("other")) is None


def test_a_record_that_changes_nothing_writes_no_checkpoint() -> None:
    topic = Topic()
    stage = stage_of(topic)
    result = stage.handle(stage.load("cam", None), topic.add(0))
    assert result.empty
    assert result.counts == {"zeros": 1}


def test_a_unit_whose_records_are_gone_starts_without_them() -> None:
    topic = Topic()
    stage = stage_of(topic)
    camera = stage.load("cam", None)
    result = stage.handle(camera, topic.add(1))
    assert result.checkpoint is not None
    topic.first = 1
    again = stage.load("cam", StoredCheckpoint(result.checkpoint, 0))
    assert again.unit.values == ()
