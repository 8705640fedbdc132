"""Which camera computes next, without threads and without a broker."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

import pytest

from lookout.errors import DeviceFailedError
from lookout.runtime.worker import Handler, Output, Record, Result, StoredCheckpoint
from lookout.runtime.worker.lanes import DAY_MS, Lanes
from lookout.runtime.worker.partitions import Lane, Partition
from lookout.runtime.worker.processing import Finished
from lookout.runtime.worker.records import NOTHING, Slot
from lookout.runtime.worker.refusals import Refusal, Refusals
from lookout.v1.state_pb2 import Checkpoint


class Later(Executor):
    """Runs what was submitted when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Any, tuple[Any, ...]]] = []

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Future[Any]:
        self.tasks.append((function, args))
        return Future()

    def run(self) -> None:
        tasks, self.tasks = self.tasks, []
        for function, args in tasks:
            function(*args)


class Script:
    """Gives the results that a test names by camera; `NOTHING` otherwise."""

    def __init__(self) -> None:
        self.results: dict[str, Finished] = {}
        self.tried: list[str] = []
        self.told: list[tuple[str, bool, int | None]] = []
        self.gives: dict[str, Result] = {}
        self.delay: dict[str, float] = {}
        self.fatal: Exception | None = None

    def process(self, lane: Lane, slot: Slot, refusal: Refusal | None) -> Finished:
        self.tried.append(lane.camera)
        if self.fatal is not None:
            return Finished(lane, slot, fatal=self.fatal)
        if (delay := self.delay.get(lane.camera)) is not None:
            return Finished(lane, slot, delay=delay)
        result = Result(forget=True) if slot.forget else self.gives.get(lane.camera, NOTHING)
        return Finished(lane, slot, result)

    def tick(self, lane: Lane, clock: bool, record_ms: int | None) -> Finished:
        self.told.append((lane.camera, clock, record_ms))
        slot = Slot(lane.camera, tick=clock, record_ms=record_ms)
        if (delay := self.delay.get(lane.camera)) is not None:
            return Finished(lane, slot, delay=delay)
        return Finished(lane, slot, self.gives.get(lane.camera, NOTHING))


class Plain(Handler[None]):
    tick_every = 1.0

    def __init__(self) -> None:
        self.lost: list[Output] = []
        self.left: list[Any] = []
        self.erased: set[str] = set()

    def ends(self, camera: str, active_ms: float) -> bool:
        return camera in self.erased

    def load(self, camera: str, stored: StoredCheckpoint | None) -> None:
        raise AssertionError("lanes load no camera here")

    def handle(self, state: None, record: Record) -> Result:
        raise AssertionError("lanes handle no record here")

    def dropped(self, outputs: Any) -> None:
        self.lost.extend(outputs)

    def leave(self, state: Any) -> None:
        self.left.append(state)


class World:
    def __init__(self, forget_after_days: float | None = None) -> None:
        self.now, self.wall_ms = 0.0, 0.0
        self.executor, self.script, self.handler = Later(), Script(), Plain()
        self.events: list[Finished] = []
        self.refusals = Refusals()
        self.lanes = Lanes(
            self.script,
            self.handler,
            self.refusals,
            self.executor,
            self.events.append,
            forget_after_days=forget_after_days,
            clock=lambda: self.now,
            wall_ms=lambda: self.wall_ms,
        )
        self.partition = Partition(0, loaded=True)
        self.offset = 0

    def send(self, camera: str) -> Slot:
        slot = Slot(camera, Record("in", 0, self.offset, camera, b""))
        self.offset += 1
        self.lanes.dispatch(self.partition.add(slot))
        return slot

    def know(self, camera: str, active_ms: int = 0) -> None:
        self.partition.checkpoints[camera] = Checkpoint()
        self.partition.active_ms[camera] = active_ms

    def wake(self, caught_up: bool = True) -> None:
        self.lanes.wake([self.partition], lambda _: caught_up)

    def compute(self) -> None:
        """Everything that is ready, until nothing is."""
        while self.executor.tasks or self.events:
            self.executor.run()
            events, self.events[:] = list(self.events), []
            for event in events:
                self.lanes.finish(event)


def test_a_camera_computes_one_record_at_a_time_and_others_beside_it() -> None:
    world = World()
    for camera in ("a", "a", "b"):
        world.send(camera)
    assert len(world.executor.tasks) == 2
    world.compute()
    assert world.script.tried == ["a", "b", "a"]
    assert all(slot.result is not None for slot in world.partition.slots)


def test_a_state_that_computed_while_its_partition_was_given_away_is_left_afterwards() -> None:
    world = World()
    world.send("a")
    world.partition.lane("a").state = "state of a"
    world.partition.dead = True
    assert world.handler.left == []
    world.compute()
    assert world.handler.left == ["state of a"]


def test_nothing_is_computed_before_the_partition_is_taken_over() -> None:
    world = World()
    world.partition.loaded = False
    world.send("a")
    assert not world.executor.tasks


def test_a_retry_waits_for_its_time_and_holds_only_its_camera() -> None:
    world = World()
    world.script.delay["a"] = 5.0
    world.send("a")
    world.send("b")
    world.compute()
    assert world.script.tried == ["a", "b"]
    world.send("a")
    world.now = 4.0
    world.wake(caught_up=False)
    assert not world.executor.tasks
    del world.script.delay["a"]
    world.now = 5.0
    world.wake(caught_up=False)
    world.compute()
    assert world.script.tried == ["a", "b", "a", "a"]
    assert world.lanes.computing == 0


def test_time_passes_only_where_everything_was_read() -> None:
    world = World()
    world.know("a")
    world.wake(caught_up=False)
    assert not world.executor.tasks
    world.wake()
    world.compute()
    assert world.script.told == [("a", True, None)]
    world.wake()
    assert not world.executor.tasks
    world.now = 1.0
    world.wake()
    assert len(world.executor.tasks) == 1


def test_record_time_passes_in_a_backlog_too() -> None:
    world = World()
    world.know("a")
    world.partition.record_ms = 5000
    world.wake(caught_up=False)
    world.compute()
    assert world.script.told == [("a", False, 5000)]


def test_a_tick_that_gives_nothing_takes_no_place_in_the_order() -> None:
    world = World()
    world.know("a")
    world.wake()
    world.compute()
    assert not world.partition.slots


def test_what_a_tick_gives_goes_before_a_record_that_came_meanwhile() -> None:
    world = World()
    world.know("a")
    world.script.gives["a"] = Result([Output("out", "a", b"gap")])
    world.wake()
    record = world.send("a")
    world.compute()
    tick, second = world.partition.slots
    assert tick.tick
    assert tick.result is not None
    assert second is record


def test_a_tick_that_fails_is_tried_again_in_its_place() -> None:
    world = World()
    world.know("a")
    world.script.delay["a"] = 1.0
    world.wake()
    record = world.send("a")
    world.compute()
    assert [slot is record for slot in world.partition.slots] == [False, True]
    assert not world.partition.finished(10)
    del world.script.delay["a"]
    world.now = 1.0
    world.wake(caught_up=False)
    world.compute()
    assert len(world.partition.finished(10)) == 2


def test_a_camera_whose_tick_kafka_refused_is_told_no_time() -> None:
    world = World()
    world.know("a")
    world.refusals.tick_refused(0, "a")
    world.wake()
    assert not world.executor.tasks


def test_a_camera_that_sent_nothing_for_days_is_forgotten() -> None:
    world = World(forget_after_days=30.0)
    world.know("old", active_ms=0)
    world.know("new", active_ms=20 * DAY_MS)
    world.wall_ms = 31.0 * DAY_MS
    world.wake(caught_up=False)
    assert not world.executor.tasks
    world.wake()
    world.compute()
    world.partition.apply(world.partition.finished(10))
    assert set(world.partition.checkpoints) == {"new"}
    assert "old" not in world.partition.lanes


def test_an_idle_camera_that_was_erased_is_forgotten_without_a_number_of_days() -> None:
    world = World()
    world.know("erased")
    world.know("other")
    world.handler.erased = {"erased"}
    world.wake()
    world.compute()
    world.partition.apply(world.partition.finished(10))
    assert set(world.partition.checkpoints) == {"other"}


def test_results_of_a_partition_that_was_given_back_are_dropped() -> None:
    world = World()
    world.script.gives["a"] = Result([Output("out", "a", b"1")])
    world.send("a")
    world.partition.dead = True
    world.compute()
    assert [each.value for each in world.handler.lost] == [b"1"]


def test_what_must_end_the_process_is_raised() -> None:
    world = World()
    world.script.fatal = DeviceFailedError("gone")
    world.send("a")
    with pytest.raises(DeviceFailedError):
        world.compute()


def test_cameras_that_leave_no_checkpoint_take_no_memory() -> None:
    """A producer may invent any number of keys."""
    world = World()
    for number in range(100):
        world.send(f"made-up-{number}")
    world.compute()
    world.partition.apply(world.partition.finished(1000))
    assert not world.partition.lanes
