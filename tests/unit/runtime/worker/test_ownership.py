"""The life of partitions, without a broker: takeovers are a fake that the test ends."""

from __future__ import annotations

from typing import Any

import pytest

from lookout.errors import LookoutRuntimeError, StartupError
from lookout.runtime.observe import Health, Metrics
from lookout.runtime.worker import Handler, Output, Record, Result
from lookout.runtime.worker.ownership import Ownership
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.takeover import Takeover
from lookout.v1.state_pb2 import Checkpoint

OTHER = Checkpoint(config_digest="other")


class FakeTakeovers:
    """Keeps what was asked for."""

    def __init__(self) -> None:
        self.asked: list[Partition] = []

    def request(self, partition: Partition) -> None:
        self.asked.append(partition)


class Plain(Handler[None]):
    def __init__(self) -> None:
        self.gone: list[int] = []
        self.cameras: list[str] = []
        self.lost: list[Output] = []
        self.left: list[Any] = []

    def load(self, camera: str, stored: Any) -> None:
        raise AssertionError("ownership loads no camera")

    def handle(self, state: None, record: Record) -> Result:
        raise AssertionError("ownership handles no record")

    def dropped(self, outputs: Any) -> None:
        self.lost.extend(outputs)

    def released(self, camera: str, partition: int) -> None:
        self.cameras.append(camera)

    def leave(self, state: None) -> None:
        self.left.append(state)

    def revoked(self, partition: int) -> None:
        self.gone.append(partition)


class World:
    def __init__(self) -> None:
        self.takeovers, self.handler, self.health = FakeTakeovers(), Plain(), Health()
        self.metrics = Metrics("toy")
        self.now = 0.0
        self.ownership = Ownership(
            self.handler,
            self.takeovers,
            refusals=Refusals(),
            metrics=self.metrics,
            health=self.health,
            foreign=self._foreign,
            own=lambda mark: mark == "ours",
            letter=lambda partition, offset, camera, value, why: Output(
                "dead", camera, value, (("why", why.encode()), ("offset", str(offset).encode()))
            ),
            refusal=lambda takeover: StartupError("another grid"),
            limit_s=60.0,
            clock=lambda: self.now,
        )

    def _foreign(self, takeover: Takeover) -> frozenset[str]:
        return frozenset(name for name, each in takeover.checkpoints.items() if each.config_digest == "other")

    def own(self, offset: int | None = 5, **checkpoints: Checkpoint) -> Partition:
        self.ownership.assigned([3])
        partition = self.takeovers.asked[-1]
        self.ownership.loaded(partition, Takeover(3, offset, checkpoints))
        return partition

    def add(self, partition: Partition, offset: int, done: bool = True) -> Slot:
        slot = Slot("cam", Record("in", 3, offset, "cam", b""))
        partition.add(slot)
        if done:
            slot.result = Result([Output("out", "cam", b"1")])
        return slot


def test_readiness_names_the_partitions_that_wait_and_why() -> None:
    world = World()
    world.ownership.update_ready()
    assert world.health.blockers()["worker"] == "joining the group"
    world.ownership.assigned([5, 3])
    five, three = world.takeovers.asked
    world.ownership.waits(three, "a transaction is open")
    assert world.health.blockers()["worker"] == "taking over partitions: 3 (a transaction is open), 5"
    world.ownership.loaded(five, Takeover(5, None))
    assert world.health.blockers()["worker"] == "taking over partitions: 3 (a transaction is open)"
    world.ownership.loaded(three, Takeover(3, None))
    assert world.health.ready()


def test_one_partition_that_waits_holds_no_other() -> None:
    world = World()
    world.ownership.assigned([3, 5])
    three, five = world.takeovers.asked
    world.ownership.waits(three, "a transaction is open")
    world.ownership.loaded(five, Takeover(5, 0))
    world.add(five, 0, done=False)
    assert five.loaded
    assert not three.loaded


def test_a_takeover_that_waits_too_long_ends_the_process() -> None:
    world = World()
    world.ownership.assigned([3, 5])
    three, five = world.takeovers.asked
    for _ in range(60):
        world.ownership.waits(three, "a transaction is open")
        world.now += 1.0
    world.ownership.waits(five, "a transaction is open")
    world.ownership.waits(three, "a transaction is open")
    world.now += 1.0
    with pytest.raises(LookoutRuntimeError, match="partition 3 could not be taken over within 60 s"):
        world.ownership.waits(three, "a transaction is open")


def test_time_in_which_kafka_is_away_does_not_count_as_waiting() -> None:
    world = World()
    world.ownership.assigned([3])
    (three,) = world.takeovers.asked
    world.ownership.waits(three, "no answer")
    world.now += 1000.0
    world.ownership.kafka_is_back()
    world.ownership.waits(three, "a transaction is open")
    world.now += 59.0
    world.ownership.waits(three, "a transaction is open")


def test_a_partition_that_was_given_back_waits_for_nothing() -> None:
    world = World()
    world.ownership.assigned([3])
    (three,) = world.takeovers.asked
    world.ownership.waits(three, "a transaction is open")
    world.ownership.gone([3], "given back")
    world.now += 1000.0
    world.ownership.waits(three, "a transaction is open")
    assert world.health.ready()


def test_an_aborted_prefix_is_read_again_from_what_is_committed() -> None:
    world = World()
    partition = world.own()
    slots = [world.add(partition, offset) for offset in (5, 6, 7)]
    taken = partition.finished(2)
    world.ownership.again(partition, taken, unknown=False)
    fresh = world.ownership.current[3]
    assert (fresh.loaded, fresh.seek_to, fresh.committed) == (True, 5, 5)
    assert partition.dead
    assert world.handler.cameras == ["cam"]
    assert len(world.handler.lost) == len(slots) - len(taken)


def test_the_states_of_a_partition_that_was_given_back_are_left_but_for_those_that_compute() -> None:
    world = World()
    partition = world.own()
    for camera, busy in (("idle", False), ("busy", True)):
        lane = partition.lane(camera)
        lane.state, lane.busy = camera, busy
    partition.lane("never loaded")
    world.ownership.gone([3], "given back")
    assert world.handler.left == ["idle"]


def test_where_nobody_knows_what_is_committed_kafka_is_asked() -> None:
    world = World()
    partition = world.own()
    world.add(partition, 5)
    world.ownership.again(partition, partition.finished(1), unknown=True)
    fresh = world.takeovers.asked[-1]
    assert fresh is not partition
    assert not fresh.loaded
    world.ownership.loaded(fresh, Takeover(3, 6))
    assert fresh.seek_to == 6


def test_a_partition_that_was_given_back_is_not_read_again() -> None:
    world = World()
    partition = world.own()
    world.add(partition, 5)
    taken = partition.finished(1)
    world.ownership.gone([3], "given back")
    world.ownership.again(partition, taken, unknown=False)
    assert world.ownership.current == {}
    assert world.handler.gone == [3]


def test_a_takeover_that_comes_too_late_changes_nothing() -> None:
    world = World()
    world.ownership.assigned([3])
    partition = world.takeovers.asked[-1]
    world.ownership.gone([3], "lost")
    world.ownership.loaded(partition, Takeover(3, 5, {"cam": OTHER}))
    assert not partition.loaded


def test_a_configuration_that_does_not_fit_is_told() -> None:
    world = World()
    with pytest.raises(StartupError, match="another grid"):
        world.own(cam=OTHER)


def test_a_strange_configuration_costs_its_camera_alone() -> None:
    """A stranger's record in the state topic would otherwise end the stage for every camera."""
    world = World()
    world.ownership.assigned([3, 5, 7])
    three, five, seven = world.takeovers.asked
    world.ownership.loaded(three, Takeover(3, 5, {"strange": OTHER}))
    assert not three.loaded
    assert "3 (its checkpoints were written with another configuration)" in world.health.blockers()["worker"]
    world.ownership.loaded(seven, Takeover(7, 5))
    world.ownership.loaded(five, Takeover(5, 5, {"honest": Checkpoint(record_ms=7), "forged": OTHER}))
    assert three.loaded
    assert world.health.ready()
    assert three.stored("strange") is None
    assert five.stored("forged") is None
    assert five.stored("honest") is not None


def test_a_configuration_that_fits_nowhere_is_told_once_every_partition_is_read() -> None:
    world = World()
    world.ownership.assigned([3, 5])
    three, five = world.takeovers.asked
    world.ownership.loaded(three, Takeover(3, 5, {"cam": OTHER}))
    with pytest.raises(StartupError, match="another grid"):
        world.ownership.loaded(five, Takeover(5, 5, {"gate": OTHER}))


def test_offsets_of_this_configuration_tell_a_forged_checkpoint_from_a_change_of_settings() -> None:
    """With a forged record as the only checkpoint, the stage ended at every start."""
    world = World()
    world.ownership.assigned([3, 5, 7])
    three, five, seven = world.takeovers.asked
    world.ownership.loaded(three, Takeover(3, 5, {"strange": OTHER}, places={"strange": 9}, mark="ours"))
    world.ownership.loaded(five, Takeover(5, None, {"stranger": OTHER}))
    world.ownership.loaded(seven, Takeover(7, 2, {"strangest": OTHER}, mark="theirs"))
    assert all(partition.loaded for partition in (three, five, seven))
    (note,) = world.health.notes().values()
    assert note == {
        "cameras": 3,
        "reasons": dict.fromkeys(
            ("strange", "stranger", "strangest"), "it was written with another configuration"
        ),
    }
    # Each is a dead letter once: the same transaction deletes the record. Not where nothing was committed.
    (slot,) = three.finished(10)
    assert slot.result is not None
    assert slot.result.forget
    (letter,) = slot.result.outputs
    assert (letter.key, letter.value) == ("strange", OTHER.SerializeToString())
    assert ("offset", b"9") in letter.headers
    assert not five.slots
    world.ownership.gone([3, 5, 7], "given back")
    assert world.health.notes() == {}


def test_changed_settings_are_told_by_the_offsets_too() -> None:
    world = World()
    world.ownership.assigned([3])
    (three,) = world.takeovers.asked
    with pytest.raises(StartupError, match="another grid"):
        world.ownership.loaded(three, Takeover(3, 5, {"cam": OTHER}, mark="theirs"))


def test_an_unreadable_checkpoint_costs_one_camera_its_state() -> None:
    world = World()
    world.ownership.assigned([3])
    partition = world.takeovers.asked[-1]
    takeover = Takeover(3, 5, {"well": Checkpoint(record_ms=7)}, {"broken": b"x"}, {"broken": 4})
    world.ownership.loaded(partition, takeover)
    assert partition.stored("well") is not None
    assert partition.stored("broken") is None
    assert partition.active_ms == {"well": 7}
    sample = world.metrics.registry.get_sample_value
    assert sample("lookout_checkpoints_unreadable_total", {"stage": "toy"}) == 1
    assert world.health.ready()


def test_the_series_of_a_partition_go_with_it() -> None:
    world = World()
    world.own()
    world.metrics.lag.labels("toy", "3").set(7)
    world.ownership.gone([3], "given back")
    sample = world.metrics.registry.get_sample_value
    assert sample("lookout_lag_records", {"stage": "toy", "partition": "3"}) is None
