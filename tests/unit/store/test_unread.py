"""What waits to be read, against a plain list; and that finding it looks at nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lookout.store import CameraQuotaError, StoreFullError, StoreSettings, TensorStore, Unread
from lookout.store.unread import UnreadIndex
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef

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


def ref(name: str, camera: str = "cam") -> TensorRef:
    return TensorRef(id=name, stage=STAGE_FRAMES, camera=camera)


class Counted(dict[str, object]):
    """Counts how many entries are walked over."""

    walked = 0

    def values(self):  # type: ignore[no-untyped-def]
        self.walked += len(self)
        return super().values()

    def items(self):  # type: ignore[no-untyped-def]
        self.walked += len(self)
        return super().items()


def test_a_turn_looks_at_nothing_that_is_not_concerned() -> None:
    store = TensorStore(StoreSettings())
    for n in range(2000):
        kept = store.put(ref(f"x{n}", f"camera-{n % 7}"), np.zeros(4, np.uint8), Unread(n % 5, 0.1))
        store.published([kept], n % 5, n)
    store._entries = Counted(store._entries)  # type: ignore[assignment]
    for partition in range(5):
        store.consumed(partition, 0)
    store.pressure()
    store.release([ref("x1")])
    store.consumed(0, 6)
    assert store.pressure().unread_bytes == 4 * (2000 - 3)
    assert store._entries.walked == 0  # type: ignore[attr-defined]


def test_one_camera_cannot_fill_the_store() -> None:
    store = TensorStore(StoreSettings(camera_bytes=10_000))
    for n in range(2):
        store.put(ref(f"a{n}", "a"), np.zeros(4_000, np.uint8), Unread(0))
    with pytest.raises(CameraQuotaError, match="8000 bytes of camera a wait") as caught:
        store.put(ref("a2", "a"), np.zeros(4_000, np.uint8), Unread(0))
    assert isinstance(caught.value, StoreFullError)
    store.put(ref("b", "b"), np.zeros(4_000, np.uint8), Unread(0))
    store.put(ref("a1", "a"), np.zeros(4_000, np.uint8), Unread(0))  # waits already
    store.put(ref("read", "a"), np.zeros(4_000, np.uint8))  # not pinned
    store.release([ref("a0", "a")])
    store.put(ref("a2", "a"), np.zeros(4_000, np.uint8), Unread(0))
    assert store.unread_bytes("a") == 8_000
    store.put(ref("large", "c"), np.zeros(20_000, np.uint8), Unread(0))  # a tensor alone is never too large
