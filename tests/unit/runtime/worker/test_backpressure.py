"""Which partitions are read, without a broker."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given, strategies as st

from lookout.runtime.worker.backpressure import Backpressure
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Record, Slot


class FakeSource:
    """Notes which partitions are paused."""

    def __init__(self) -> None:
        self.paused: set[int] = set()
        self.placed: list[tuple[int, int]] = []
        self.reading: set[int] = set()
        self.busy = False

    def pause(self, numbers: Collection[int]) -> None:
        self.paused |= set(numbers)

    def resume(self, numbers: Collection[int]) -> None:
        self.paused -= set(numbers)

    def reads(self, number: int) -> bool:
        return number in self.reading

    def place(self, number: int, offset: int) -> bool:
        if not self.busy:
            self.placed.append((number, offset))
            self.reading.add(number)
            self.paused.discard(number)
        return not self.busy


class World:
    def __init__(self, partitions: int, bytes_: int = 100, records: int = 3) -> None:
        self.now, self.full = 0.0, set[int]()
        self.source = FakeSource()
        self.partitions = {number: Partition(number, loaded=True) for number in range(partitions)}
        self.source.reading = set(range(partitions))
        self.pressure = Backpressure(
            self.source,
            records=records,
            bytes_=bytes_,
            over_budget=lambda: self.full,
            clock=lambda: self.now,
        )

    def update(self) -> set[int]:
        self.now += 1.0
        return self.pressure.update(self.partitions)

    def read(self, number: int, size: int) -> None:
        self.partitions[number].add(Slot("cam", Record("in", number, 0, "cam", bytes(size))))


def test_a_partition_is_read_from_its_offset_once_it_is_taken_over() -> None:
    world = World(1)
    world.source.reading = set()
    world.partitions[0].loaded = False
    assert world.update() == set()
    world.partitions[0].loaded, world.partitions[0].seek_to = True, 7
    assert world.update() == {0}
    assert world.source.placed == [(0, 7)]
    assert world.source.paused == set()


def test_a_partition_with_enough_records_is_paused() -> None:
    world = World(2, records=2)
    for _ in range(2):
        world.read(0, 1)
    world.update()
    assert world.source.paused == {0}
    world.partitions[0].slots.clear()
    world.update()
    assert world.source.paused == set()


def test_a_full_store_pauses_the_partitions_it_names() -> None:
    world = World(2)
    world.full = {1}
    world.update()
    assert world.source.paused == {1}


def test_going_back_is_tried_until_the_client_lets_it() -> None:
    world = World(1)
    world.partitions[0].seek_to = 7
    world.source.busy = True
    world.update()
    assert world.source.paused == {0}
    world.source.busy = False
    world.update()
    assert world.source.placed == [(0, 7)]
    assert world.source.paused == set()


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 60)), max_size=200), st.integers(1, 8))
def test_bytes_read_ahead_stay_within_the_budget_and_one_record_for_each_partition(
    arrivals: list[tuple[int, int]], partitions: int
) -> None:
    """However many partitions a process has, and whichever fill up: none is starved, none takes all."""
    world = World(partitions, bytes_=400, records=1000)
    for number, size in arrivals:
        world.update()
        if number < partitions and number not in world.source.paused:
            world.read(number, size)
    total = sum(each.bytes for each in world.partitions.values())
    assert total <= 400 + partitions * 60
    world.update()
    assert all(each.slots for number, each in world.partitions.items() if number in world.source.paused)
