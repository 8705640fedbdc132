"""The index of what waits to be read, against a plain list."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lookout.runtime.store import Unread
from lookout.runtime.store.unread import UnreadIndex

PARTITIONS, CAMERAS, KEYS = st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 12).map(str)


class IndexMachine(RuleBasedStateMachine):
    """The index against rows of key -> [partition, camera, length, seconds, offset]."""

    def __init__(self) -> None:
        super().__init__()
        self.index = UnreadIndex()
        self.rows: dict[str, list[object]] = {}

    @rule(key=KEYS, partition=PARTITIONS, camera=CAMERAS, length=st.integers(0, 9), seconds=st.integers(0, 9))
    def add(self, key: str, partition: int, camera: str, length: int, seconds: int) -> None:
        self.index.add(key, camera, length, Unread(partition, float(seconds)))
        self.rows[key] = [partition, camera, length, float(seconds), None]

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        self.index.remove(key)
        self.rows.pop(key, None)

    @rule(key=KEYS, partition=PARTITIONS, offset=st.integers(0, 20))
    def published(self, key: str, partition: int, offset: int) -> None:
        self.index.published(key, partition, offset)
        if key in self.rows:
            self.rows[key][0], self.rows[key][4] = partition, offset

    @rule(partition=PARTITIONS, committed=st.integers(0, 21))
    def consumed(self, partition: int, committed: int) -> None:
        found = self.index.before(partition, committed)
        expected = {
            key
            for key, row in self.rows.items()
            if row[0] == partition and row[4] is not None and row[4] < committed  # type: ignore[operator]
        }
        assert set(found) == expected
        for key in expected:
            self.remove(key)

    @invariant()
    def everything_is_found(self) -> None:
        for partition in range(3):
            keys = {key for key, row in self.rows.items() if row[0] == partition}
            assert set(self.index.of_partition(partition)) == keys
            lengths = sum(int(self.rows[key][2]) for key in keys)  # type: ignore[call-overload]
            assert self.index.bytes_by_partition.get(partition, 0) == lengths
            for camera, held in self.index.cameras.get(partition, {}).items():
                mine = [row for row in self.rows.values() if row[:2] == [partition, camera]]
                assert held.seconds == sum(float(row[3]) for row in mine)  # type: ignore[arg-type]
        for camera in "abc":
            rows = {key: row for key, row in self.rows.items() if row[1] == camera}
            assert set(self.index.of_camera(camera)) == set(rows)
            assert self.index.bytes_of(camera) == sum(int(row[2]) for row in rows.values())  # type: ignore[call-overload]


IndexMachine.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=30, deadline=None)
TestIndex = IndexMachine.TestCase
