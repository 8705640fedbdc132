"""What a failure of a handler means for its record, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lookout.errors import BadRecordError, DeviceFailedError, TransientError
from lookout.runtime.observe import Health, Metrics, logs
from lookout.runtime.worker import (
    DeadLetter,
    Handler,
    Output,
    Record,
    Result,
    ServiceSettings,
    StoredCheckpoint,
    is_device_failure,
)
from lookout.runtime.worker.partitions import Lane, Partition
from lookout.runtime.worker.processing import Finished, Processor
from lookout.runtime.worker.records import Slot
from lookout.runtime.worker.refusals import Refusal
from lookout.runtime.worker.watchdog import OverdueError, Running
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import WireError
from tests.changed_settings import changed_settings

RECORD = Record("in", 0, 7, "cam", b"value")


class Scripted(Handler[list[str]]):
    """Raises what `error` gives; its state is a list of what was called."""

    def __init__(self) -> None:
        self.error: Callable[[], Exception] | None = None
        self.load_error: Callable[[], Exception] | None = None
        self.loads: list[bool] = []
        self.told: list[str] = []
        self.gives_tick = self.gives_passed = False
        self.left = 0

    def load(self, camera: str, stored: StoredCheckpoint | None) -> list[str]:
        self.loads.append(stored is not None)
        if self.load_error is not None and stored is not None:
            raise self.load_error()
        return []

    def handle(self, state: list[str], record: Record) -> Result:
        if self.error is not None:
            raise self.error()
        return Result([Output("out", record.camera, b"done")])

    def tick(self, state: list[str], now: float) -> Result | None:
        return self._told(f"clock {now > 1e9}", self.gives_tick)

    def passed(self, state: list[str], record_ms: int) -> Result | None:
        return self._told(f"record time {record_ms}", self.gives_passed)

    def _told(self, what: str, gives: bool) -> Result | None:
        self.told.append(what)
        if self.error is not None:
            raise self.error()
        return Result([Output("out", "cam", what.encode())]) if gives else None

    def forget(self, state: list[str]) -> Result:
        return Result([Output("out", "cam", b"forgotten")])

    def leave(self, state: list[str]) -> None:
        self.left += 1

    def rejected(self, state: list[str], record: Record, reason: DeadLetter) -> Result:
        return Result([Output("out", record.camera, reason.reason.encode())])


class World:
    def __init__(self, **settings: float) -> None:
        kind, fields = changed_settings(ServiceSettings, **settings)
        self.now = 0.0
        self.handler = Scripted()
        self.health = Health()
        self.health.clear("worker")
        self.processor = Processor(
            kind(mode="local", instance="one", **fields),
            "toy",
            self.handler,
            metrics=Metrics("toy"),
            health=self.health,
            clock=lambda: self.now,
        )
        self.partition = Partition(0, loaded=True)
        self.lane = Lane("cam", self.partition, None)
        self.slot = Slot("cam", RECORD)

    def try_once(self, refusal: Refusal | None = None) -> Finished:
        finished = self.processor.process(self.lane, self.slot, refusal)
        self.now += finished.delay
        return finished

    def try_until_it_ends(self) -> Finished:
        for _ in range(1000):
            finished = self.try_once()
            if finished.result is not None or finished.fatal is not None:
                return finished
        raise AssertionError("it is tried for ever")


def letter(finished: Finished) -> str | None:
    assert finished.result is not None
    return finished.result.dead_letter.reason if finished.result.dead_letter else None


def cuda() -> Exception:
    return RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.slow
@pytest.mark.parametrize("error", [cuda, lambda: DeviceFailedError("no memory left")])
def test_a_device_that_fails_for_good_ends_the_process(error: Callable[[], Exception]) -> None:
    world = World(device_retry_s=10.0)
    world.handler.error = error
    assert world.try_once().result is None
    assert "device" in world.health.blockers()
    finished = world.try_until_it_ends()
    assert finished.result is None
    assert isinstance(finished.fatal, DeviceFailedError)
    assert world.now >= 10.0


def test_a_device_that_recovers_makes_the_worker_ready() -> None:
    world = World()
    world.handler.error = cuda
    world.try_once()
    world.handler.error = None
    assert letter(world.try_once()) is None
    assert world.health.ready()


def test_the_state_is_loaded_again_after_a_failure_of_the_device() -> None:
    world = World()
    world.handler.error = cuda
    world.try_once()
    world.try_once()
    assert len(world.handler.loads) == 2


def test_an_error_of_the_device_is_found_behind_another_one() -> None:
    error = ValueError("the window failed")
    error.__cause__ = cuda()
    assert is_device_failure(error)
    assert not is_device_failure(ValueError("CUDA error: only words"))


def test_a_transient_error_is_tried_until_its_own_limit() -> None:
    world = World(retry_limit_s=3600.0)
    world.handler.error = lambda: TransientError("the store is away", give_up_s=30.0)
    assert letter(world.try_until_it_ends()) == "unavailable"
    assert 30.0 <= world.now < 60.0


def test_time_without_kafka_does_not_count_as_a_dependency_being_away() -> None:
    world = World(retry_limit_s=30.0)
    world.handler.error = lambda: TransientError("Kafka does not answer")
    world.try_once()
    world.now += 1000.0
    world.processor.kafka_is_back()
    assert world.try_once().result is None


def test_an_unknown_error_becomes_a_dead_letter_after_its_attempts() -> None:
    world = World()
    world.handler.error = lambda: ValueError("a bug")
    assert letter(world.try_until_it_ends()) == "internal-error"
    assert world.slot.failures == world.handler.attempts


def test_a_bad_record_is_rejected_at_once() -> None:
    world = World()
    world.handler.error = lambda: BadRecordError("bad", "as asked")
    finished = world.try_once()
    assert letter(finished) == "bad"
    assert finished.result is not None
    assert [each.value for each in finished.result.outputs] == [b"bad"]


@pytest.mark.slow
def test_a_checkpoint_that_the_handler_cannot_use_costs_one_camera_its_state() -> None:
    world = World()
    world.lane.stored = StoredCheckpoint(Checkpoint(), 0)
    world.handler.load_error = lambda: KeyError("a field of another release")
    assert letter(world.try_until_it_ends()) is None
    assert world.handler.loads[-1] is False


def test_a_checkpoint_that_names_records_that_are_none_is_left_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.setup("toy", "one")
    world = World()
    world.lane.stored = StoredCheckpoint(Checkpoint(), 0)
    world.handler.load_error = lambda: WireError("StrideBlock.patches: 20004 entries, 2048 at most")
    assert letter(world.try_until_it_ends()) is None
    assert world.handler.loads == [True, False]
    lines = capsys.readouterr().err
    assert "20004 entries" in lines
    assert "Traceback" not in lines


def test_a_handler_adds_to_the_dead_letter_of_work_that_took_too_long() -> None:
    world = World()
    world.handler.error = OverdueError
    finished = world.try_once()
    assert letter(finished) == "overdue"
    assert finished.result is not None
    assert [output.value for output in finished.result.outputs] == [b"overdue"]


def test_a_handler_adds_to_the_dead_letter_of_work_that_cannot_be_stopped() -> None:
    """With a state of its own: the work still has the camera's."""
    world = World()
    world.lane.state = ["of the work"]
    running = Running(0, world.lane, world.slot, 0.0)
    world.processor.overdue(running)
    assert running.result is not None
    assert [output.value for output in running.result.outputs] == [b"overdue"]
    assert world.lane.state == ["of the work"]
    assert world.handler.loads == [False]


def test_an_addition_that_fails_costs_the_addition_alone() -> None:
    world = World()
    world.lane.stored = StoredCheckpoint(Checkpoint(), 0)
    world.handler.load_error = lambda: RuntimeError("as asked")
    world.handler.error = OverdueError
    running = Running(0, world.lane, world.slot, 0.0)
    world.processor.overdue(running)
    assert running.result == Result(
        dead_letter=DeadLetter("overdue", "work on the record took longer than 900 s")
    )


def test_a_forgotten_camera_leaves_its_last_words_and_no_state() -> None:
    world = World()
    world.lane.stored = StoredCheckpoint(Checkpoint(), 0)
    world.slot = Slot("cam", forget=True)
    finished = world.try_once()
    assert finished.result is not None
    assert finished.result.forget
    assert [each.value for each in finished.result.outputs] == [b"forgotten"]
    assert world.lane.stored is None
    assert world.handler.left == 1


def test_a_refused_output_becomes_a_dead_letter_then_a_bare_one() -> None:
    world = World()
    reason = DeadLetter("output-refused", "too large")
    finished = world.try_once(Refusal(reason))
    assert letter(finished) == "output-refused"
    assert finished.result is not None
    assert len(finished.result.outputs) == 1
    finished = world.try_once(Refusal(reason, bare=True))
    assert letter(finished) == "output-refused"
    assert finished.result is not None
    assert not finished.result.outputs


@pytest.mark.parametrize(
    ("clock", "record_ms", "told"),
    [
        (True, None, ["clock True"]),
        (False, 9000, ["record time 9000"]),
        (True, 9000, ["clock True", "record time 9000"]),
    ],
)
def test_an_idle_camera_is_told_the_clock_and_then_the_record_time(
    clock: bool, record_ms: int | None, told: list[str]
) -> None:
    world = World()
    finished = world.processor.tick(world.lane, clock, record_ms)
    assert world.handler.told == told
    assert finished.result is not None
    assert finished.result.empty
    assert world.handler.loads == [False]


def test_what_record_time_gives_is_a_result_like_any_other() -> None:
    world = World()
    world.handler.gives_passed = True
    finished = world.processor.tick(world.lane, True, 9000)
    assert finished.result is not None
    assert [each.value for each in finished.result.outputs] == [b"record time 9000"]
    assert (finished.slot.tick, finished.slot.record_ms) == (True, 9000)


def test_a_camera_that_the_clock_gave_something_is_not_told_the_record_time() -> None:
    """One gap for one silence."""
    world = World()
    world.handler.gives_tick = world.handler.gives_passed = True
    finished = world.processor.tick(world.lane, True, 9000)
    assert finished.result is not None
    assert [each.value for each in finished.result.outputs] == [b"clock True"]
    assert world.handler.told == ["clock True"]


def test_record_time_that_could_not_be_told_is_told_again() -> None:
    world = World()
    world.handler.gives_passed = True
    world.handler.error = lambda: TransientError("the store is away")
    finished = world.processor.tick(world.lane, False, 9000)
    assert finished.result is None
    assert finished.delay > 0
    world.handler.error = None
    again = world.processor.process(world.lane, finished.slot, None)
    assert again.result is not None
    assert [each.value for each in again.result.outputs] == [b"record time 9000"]


def test_nothing_is_told_in_a_partition_that_was_given_away() -> None:
    world = World()
    world.partition.dead = True
    world.processor.tick(world.lane, True, 9000)
    assert world.handler.told == []


def test_an_output_too_large_for_its_topic_costs_its_record_alone() -> None:
    world = World()

    class Large(Scripted):
        def handle(self, state: list[str], record: Record) -> Result:
            return Result([Output("verdicts.v1", record.camera, b"x" * (1 << 20))])

        def dropped(self, outputs: Sequence[Output]) -> None:
            dropped.extend(outputs)

    dropped: list[Output] = []
    world.handler = world.processor._handler = Large()
    finished = world.try_once()
    assert letter(finished) == "output-refused"
    assert finished.result is not None
    assert [output.topic for output in finished.result.outputs] == ["out"]
    assert len(dropped) == 1
