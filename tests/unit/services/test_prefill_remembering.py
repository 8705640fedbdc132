"""What prefill remembers: the newest block of every committed window, once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookout.models.engines import load_engine
from lookout.past.erasures import Fence, new_erasure
from lookout.past.memory import HistoryError, Keep, MemorySettings
from lookout.past.memory.chapters import Born, ChapterFolder, ChapterRules
from lookout.runtime.worker import Result
from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.remembering import Captures, ChapterLanes
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import from_json
from tests.eventually import eventually
from tests.prefill_world import WALL_US, block_record, stream
from tests.tiny_models import checkpoint
from tests.unit.services.prefill_case import CROWD, FALL, World

SMALL = MemorySettings(window=3, construct=6, cluster_tokens=16, visual_frames=4, smallest=4)


class Remembering:
    """A world whose handler remembers, and whose results are committed or not."""

    def __init__(self, root: Path, **lanes: Any) -> None:
        self.engine = load_engine(checkpoint("internvl"))
        self.captures = Captures(self.engine, 500_000)
        self.batcher = Batcher(self.engine, 8, after=self.captures.after)
        self.folder = ChapterFolder(
            root, ChapterRules(Keep(seconds=1e10)), self.engine.kv_shape, settings=SMALL
        )
        self.lanes = ChapterLanes(self.captures, self.folder, **lanes)
        self.world = World(self.batcher, FALL, CROWD)
        self.world.handler._memory = self.lanes

    def decide(self, message: Any, *, commit: bool = True) -> Result:
        result = self.world.handle(message)
        if commit:
            self.commit(result)
        return result

    def commit(self, result: Result) -> None:
        if result.then is not None:
            result.then()

    def close(self) -> None:
        self.lanes.close()
        self.batcher.close()


@pytest.fixture
def remembering(tmp_path: Path) -> Iterator[Remembering]:
    made = Remembering(tmp_path)
    yield made
    made.close()


def born_of(result: Result) -> Born:
    """The block that a result remembers once it is committed."""
    assert isinstance(result.then, partial)
    (born,) = result.then.args
    assert isinstance(born, Born)
    return born


def blocks_of(folder: ChapterFolder, camera: str = "gate") -> list[int]:
    """Strides of which a chapter has frames, by their stream time."""
    out: list[int] = []
    for facts in folder.chapters(camera):
        head = folder.read(facts.name)[0].head
        out += np.unique(head.times_us[head.present] // 2_000_000).tolist()
    return out


@pytest.mark.slow
def test_every_committed_block_enters_once(remembering: Remembering) -> None:
    for record in stream("gate", 8)[:-1]:
        remembering.commit(remembering.decide(record))  # twice: the second call changes nothing
    eventually(lambda: remembering.lanes.waiting_bytes == 0 and remembering.lanes.entered == 8)
    assert blocks_of(remembering.folder) == list(range(8))
    (facts,) = remembering.folder.chapters()
    assert (facts.camera, facts.epoch, facts.begin_us) == ("gate", 0, WALL_US)
    assert remembering.lanes.lost == 0


@pytest.mark.slow
def test_what_is_remembered_is_what_the_engine_computed(remembering: Remembering) -> None:
    result = remembering.decide(block_record("gate", 0), commit=False)
    assert len(result.outputs) == 2  # one block for all watches
    born = born_of(result)
    state = remembering.world.states["gate"]
    assert state.unit.chain.plan is not None
    held = remembering.engine.kv(state.unit.chain.plan.stream)
    rows = state.unit.chain.plan.parts
    begin, end = rows[0].stop, rows[-1].stop
    assert np.array_equal(born.block.keys[0].numpy(), held.keys[0][:, begin:end].numpy())
    assert born.prefix.keys.shape[2] == begin


@pytest.mark.slow
def test_strides_that_are_asked_alone_are_not_remembered(remembering: Remembering) -> None:
    """Blocks of windows are, whatever else is asked of the camera."""
    world = remembering.world
    world.publish(Watch(id="alone", version=1, question="Is it?", asked=Watch.ASKED_STRIDES))
    for index in range(3):
        assert remembering.decide(block_record("gate", index)).then is not None
    for watch in (FALL, CROWD):
        world.delete(watch.id)
    assert remembering.decide(block_record("gate", 3)).then is None
    eventually(lambda: remembering.lanes.waiting_bytes == 0)
    remembering.folder.seal("gate")
    assert blocks_of(remembering.folder) == [0, 1, 2]


@pytest.mark.slow
def test_an_aborted_window_is_not_remembered(remembering: Remembering) -> None:
    for index in range(3):
        remembering.decide(block_record("gate", index))
    aborted = remembering.decide(block_record("gate", 3), commit=False)
    remembering.world.handler.dropped(aborted.outputs)
    remembering.world.abort("gate", None)
    eventually(lambda: remembering.lanes.entered == 3)
    assert blocks_of(remembering.folder) == [0, 1, 2]


@pytest.mark.slow
def test_a_camera_that_is_given_away_is_sealed_behind_its_last_block(remembering: Remembering) -> None:
    for index in range(3):
        remembering.decide(block_record("gate", index))
    remembering.world.release("gate")
    eventually(lambda: [facts.sealed for facts in remembering.folder.chapters()] == [True])
    assert blocks_of(remembering.folder) == [0, 1, 2]


@pytest.mark.slow
def test_a_quiet_camera_is_sealed(tmp_path: Path) -> None:
    made = Remembering(tmp_path, idle_s=0.0)
    made.decide(block_record("gate", 0))
    eventually(lambda: [facts.sealed for facts in made.folder.chapters()] == [True])
    made.decide(block_record("gate", 1))
    eventually(lambda: blocks_of(made.folder) == [0, 1])
    made.close()


@pytest.mark.slow
def test_a_quiet_camera_is_sealed_beside_busy_ones(tmp_path: Path) -> None:
    """Its lane always had something to do, so the chapter stayed open, in memory and out of the tier."""
    made = Remembering(tmp_path, idle_s=0.0)
    made.decide(block_record("gate", 0))

    def sealed() -> bool:
        made.lanes.leave("yard")
        return [facts.sealed for facts in made.folder.chapters()] == [True]

    eventually(sealed)
    made.close()


@pytest.mark.slow
def test_a_block_whose_last_frame_was_erased_is_not_remembered(tmp_path: Path) -> None:
    last_us = WALL_US + 1_500_000
    made = Remembering(tmp_path, fence=Fence([new_erasure("gate", last_us, last_us + 1, last_us + 1, "me")]))
    born = born_of(made.decide(block_record("gate", 0)))
    assert int(born.block.times_us[-1]) + born.origin_us == last_us
    made.decide(block_record("gate", 1))
    eventually(lambda: made.lanes.waiting_bytes == 0 and made.lanes.entered == 1)
    assert blocks_of(made.folder) == [1]
    made.close()


@pytest.mark.slow
def test_a_full_queue_leaves_blocks_out_and_holds_no_window_up(tmp_path: Path) -> None:
    made = Remembering(tmp_path, queue_bytes=1)
    results = [made.decide(block_record("gate", index)) for index in range(4)]
    assert all(result.outputs for result in results)
    eventually(lambda: made.lanes.left_out == 4)
    assert made.lanes.lost == 4
    assert not made.folder.chapters()
    made.close()


@pytest.mark.slow
def test_a_disk_that_fails_costs_the_block_alone(
    remembering: Remembering, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ChapterFolder.add

    def fails(folder: ChapterFolder, born: Born) -> bool:
        if born.block.index == 1:
            raise HistoryError("the disk is full")
        return add(folder, born)

    monkeypatch.setattr(ChapterFolder, "add", fails)
    for index in range(4):
        assert remembering.decide(block_record("gate", index)).outputs
    eventually(lambda: remembering.lanes.entered == 3)
    assert blocks_of(remembering.folder) == [0, 2, 3]
    assert remembering.lanes.lost == 1


@pytest.mark.slow
def test_a_window_without_a_picture_and_a_gap_give_nothing(remembering: Remembering) -> None:
    for record in stream("gate", 4, holes=[1]):
        remembering.decide(record)
    remembering.decide(block_record("gate", 0, epoch=5))
    eventually(lambda: remembering.lanes.entered == 4)
    assert blocks_of(remembering.folder) == [0, 2, 3, 0]
    assert [facts.epoch for facts in remembering.folder.chapters()] == [0, 5]


@pytest.mark.slow
def test_answers_are_those_of_a_prefill_that_remembers_nothing(
    remembering: Remembering, batcher: Batcher
) -> None:
    plain = World(batcher, FALL, CROWD)
    for record in stream("gate", 5):
        one, other = remembering.decide(record), plain.handle(record)
        assert [_outcome(output.value) for output in one.outputs] == [
            _outcome(output.value) for output in other.outputs
        ]


def _outcome(value: bytes | None) -> Verdict:
    """A verdict without what the device's clock said."""
    assert value is not None
    verdict = from_json(value, Verdict)
    verdict.cost.ClearField("device_us")
    return verdict


@pytest.mark.slow
def test_a_born_block_is_taken_right_after_its_window(remembering: Remembering) -> None:
    remembering.decide(block_record("gate", 0), commit=False)
    state = remembering.world.states["gate"]
    assert state.unit.chain.plan is not None
    stale = state.unit.chain.plan
    remembering.decide(block_record("gate", 1), commit=False)
    assert remembering.captures.take(stale) is None
