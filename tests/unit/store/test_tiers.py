"""Budgets, pins, spilling and recovery of one process's tensors."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from lookout.store import (
    LineageBrokenError,
    StoreFullError,
    StoreNumbers,
    StoreSettings,
    TensorCorruptError,
    TensorStore,
    Unread,
)
from lookout.store.accounting import TierAccounting
from lookout.store.tensors import checksum
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, TensorRef


def ref(name: str, offset: int = 0, camera: str = "cam") -> TensorRef:
    source = RecordRef(topic="camera.segments.v1", partition=0, offset=offset)
    return TensorRef(id=name, stage=STAGE_FRAMES, camera=camera, input=source, segments=[source])


def kib(seed: int, n: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (n, 1024), dtype=np.uint8)


def store(memory: int, disk: int = 0, spool: Path | None = None, **more: float) -> TensorStore:
    unread = {"unread_bytes": memory + (disk if spool else 0)} | more
    return TensorStore(
        StoreSettings(memory_bytes=memory, disk_bytes=disk, spool=spool, reserve_bytes=4096, **unread)  # type: ignore[arg-type]
    )


class TestTiers:
    def test_put_fills_the_reference_and_gives_rows(self) -> None:
        kept = store(1 << 16)
        data = kib(1, 8)
        filled = kept.put(ref("a"), data)
        assert (list(filled.shape), filled.dtype, filled.length) == ([8, 1024], "uint8", 8192)
        assert filled.crc32c == checksum(data)
        whole = kept.get(filled)
        assert whole is not None
        assert not whole.flags.writeable
        assert np.shares_memory(whole, data)
        some = kept.get(filled, [(6, 8), (0, 1)])
        assert some is not None
        np.testing.assert_array_equal(some, data[[6, 7, 0]])
        with pytest.raises(IndexError, match="8 rows"):
            kept.get(filled, [(7, 9)])

    @pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "int64", "bool"])
    def test_dtypes_survive_the_disk(self, tmp_path: Path, dtype: str) -> None:
        kept = store(16, 1 << 16, tmp_path)
        data = np.arange(60).reshape(3, 4, 5).astype(dtype)
        filled = kept.put(ref("a"), data)
        read = kept.get(filled)
        assert kept.stats().disk_bytes == data.nbytes
        assert read is not None
        np.testing.assert_array_equal(read, data)

    def test_bfloat16_travels_as_its_bits(self) -> None:
        filled = store(1024).put(ref("a"), np.arange(6, dtype=np.uint16).reshape(2, 3), dtype="bfloat16")
        assert (filled.dtype, filled.length) == ("bfloat16", 12)

    def test_objects_are_refused(self) -> None:
        with pytest.raises(TensorCorruptError, match="object"):
            store(1024).put(ref("a"), np.array([object()]))

    def test_least_recently_used_leaves_first(self) -> None:
        kept = store(2048)
        kept.put(ref("a", 1), kib(1))
        kept.put(ref("b", 2), kib(2))
        assert kept.get(ref("a")) is not None
        kept.put(ref("c", 3), kib(3))
        assert [ref(name) in kept for name in "abc"] == [True, False, True]
        assert kept.lines() == [line for line in kept.lines() if not line.endswith("/2")]
        assert kept.stats().evicted == 1

    def test_unread_tensors_are_not_evicted_and_fill_the_store(self) -> None:
        kept = store(2048)
        for n, name in enumerate("ab"):
            kept.put(ref(name), kib(n), Unread(0))
        with pytest.raises(StoreFullError, match="consumer"):
            kept.put(ref("c"), kib(3), Unread(0))
        kept.put(ref("d"), kib(4))
        assert ref("d") not in kept
        kept.published([ref("a"), ref("b")], 0, 7)
        kept.consumed_all({0: 7, 1: 99})
        assert kept.stats().pinned_bytes == 2048
        kept.consumed(0, 8)
        assert kept.stats().pinned_bytes == 0
        kept.put(ref("c"), kib(3), Unread(0))
        assert ref("c") in kept

    def test_unread_tensors_spill_rather_than_go(self, tmp_path: Path) -> None:
        kept = store(2048, 2048, tmp_path)
        for n, name in enumerate("abcd"):
            kept.put(ref(name), kib(n), Unread(0))
        for n, name in enumerate("abcd"):
            found = kept.get(ref(name))
            assert found is not None
            np.testing.assert_array_equal(found, kib(n))
        with pytest.raises(StoreFullError):
            kept.put(ref("e"), kib(9), Unread(0))
        kept.release_partition(0)
        kept.put(ref("e"), kib(9), Unread(0))
        assert ref("e") in kept

    def test_an_aborted_transaction_unpins(self) -> None:
        kept = store(2048)
        kept.put(ref("a"), kib(1), Unread(3))
        kept.put(ref("b"), kib(2), Unread(3))
        kept.release([ref("a")])
        assert kept.stats().pinned_bytes == 1024
        kept.release_camera("cam")
        assert kept.stats().pinned_bytes == 0
        assert ref("a") in kept

    def test_spool_is_found_again_and_checked(self, tmp_path: Path) -> None:
        kept = store(16, 1 << 16, tmp_path)
        filled = [kept.put(ref(name, n), kib(n)) for n, name in enumerate("abc")]
        first, second = sorted(tmp_path.glob("*.tensor"))[:2]
        first.write_bytes(first.read_bytes()[:-1])
        broken = bytearray(second.read_bytes())
        broken[-1] ^= 1
        second.write_bytes(broken)
        (tmp_path / "x.part").write_bytes(b"half")
        again = store(16, 1 << 16, tmp_path)
        assert again.stats().tensors == 2
        assert len(again.lines()) == 2
        assert sum(again.get(one) is not None for one in filled) == 1
        assert again.stats().corrupt == 1
        assert len(list(tmp_path.iterdir())) == 1

    def test_a_broken_disk_costs_the_tensor_not_memory(self, tmp_path: Path) -> None:
        spool = tmp_path / "spool"
        kept = store(1024, 1 << 16, spool)
        kept.put(ref("a"), kib(1))
        spool.rmdir()
        kept.put(ref("b"), kib(2))
        assert ref("a") not in kept
        assert (kept.stats().memory_bytes, kept.stats().disk_bytes) == (1024, 0)

    def test_settings_that_cannot_work_are_refused(self) -> None:
        with pytest.raises(ValueError, match="unread_bytes"):
            StoreSettings(memory_bytes=10, unread_bytes=20)


class TestPressure:
    def test_bytes_pause_the_crowded_partition_until_three_quarters(self) -> None:
        kept = store(1 << 16, unread_bytes=8192)
        kept.put(ref("small"), kib(0), Unread(1))
        for n in range(7):
            assert kept.pressure().paused == frozenset()
            kept.put(ref(f"a{n}"), kib(n), Unread(0))
            kept.published([ref(f"a{n}")], 0, n)
        assert kept.pressure().paused == {0}
        kept.consumed(0, 1)
        assert kept.pressure().paused == {0}
        kept.consumed(0, 3)
        assert kept.pressure().paused == frozenset()

    def test_seconds_pause_by_camera(self) -> None:
        kept = store(1 << 16, unread_seconds=10.0)
        for n in range(4):
            kept.put(ref(f"a{n}", camera=f"cam{n}"), kib(n), Unread(0, 9.0))
        assert kept.pressure().paused == frozenset()
        kept.put(ref("b", camera="cam0"), kib(9), Unread(0, 2.0))
        assert kept.pressure().paused == {0}
        assert kept.pressure().unread_seconds == 11.0


def test_numbers() -> None:
    kept, registry = store(1 << 16), CollectorRegistry()
    registry.register(StoreNumbers(kept))
    kept.put(ref("a"), kib(1), Unread(0, 4.0))
    kept.get(ref("a"))
    kept.get(ref("b"))
    assert registry.get_sample_value("lookout_store_bytes", {"tier": "memory"}) == 1024
    assert registry.get_sample_value("lookout_store_unread_seconds") == 4.0
    assert registry.get_sample_value("lookout_store_reads_total", {"outcome": "hit"}) == 1
    assert registry.get_sample_value("lookout_store_reads_total", {"outcome": "miss"}) == 1


class TestMaterialize:
    def test_has_room_outside_the_budget(self) -> None:
        kept = store(1024)
        kept.makes(STAGE_FRAMES, lambda ref, record: kib(int(ref.id)))
        kept.put(ref("0"), kib(0), Unread(0))
        np.testing.assert_array_equal(kept.materialize(ref("5"), FramesRecord()), kib(5))
        assert kept.get(ref("5")) is not None
        assert kept.stats().reserve_bytes == 1024
        for n in range(6, 12):
            kept.materialize(ref(str(n)), FramesRecord())
        assert kept.stats().reserve_bytes == 4096
        assert kept.stats().pinned_bytes == 1024

    def test_requests_at_one_time_are_made_once(self) -> None:
        kept, made, go = store(1024), [], threading.Event()

        def make(ref: TensorRef, record: object) -> np.ndarray:
            made.append(ref.id)
            go.wait(5)
            return kib(1)

        kept.makes(STAGE_FRAMES, make)
        out: list[np.ndarray] = []
        threads = [
            threading.Thread(target=lambda: out.append(kept.materialize(ref("a"), FramesRecord())))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        go.set()
        for thread in threads:
            thread.join()
        assert made == ["a"]
        assert len(out) == 4

    def test_failures_reach_every_caller_and_are_tried_again(self) -> None:
        kept = store(1024)

        def broken(ref: TensorRef, record: object) -> np.ndarray:
            raise LineageBrokenError("segment camera.segments.v1/0@5 is gone")

        kept.makes(STAGE_FRAMES, broken)
        for _ in range(2):
            with pytest.raises(LineageBrokenError, match="gone"):
                kept.materialize(ref("a"), FramesRecord())

    def test_another_shape_than_the_record_says_is_refused(self) -> None:
        kept = store(4096)
        filled = kept.put(ref("a"), kib(1))
        kept.drop(filled)
        kept.makes(STAGE_FRAMES, lambda ref, record: kib(1, 2))
        with pytest.raises(TensorCorruptError, match=r"\(2, 1024\)"):
            kept.materialize(filled, FramesRecord())


def test_many_threads_share_one_store(tmp_path: Path) -> None:
    kept = store(8 * 1024, 8 * 1024, tmp_path)
    wrong: list[str] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(60):
            n = int(draw.integers(0, 24))
            if draw.random() < 0.5:
                kept.put(ref(str(n), n), kib(n))
            elif (found := kept.get(ref(str(n), n))) is not None and not np.array_equal(found, kib(n)):
                wrong.append(str(n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    stats = kept.stats()
    assert stats.memory_bytes <= 8 * 1024
    assert stats.disk_bytes <= 8 * 1024
    assert len(list(tmp_path.glob("*"))) == stats.disk_bytes // 1024
    assert stats.corrupt == 0


class LedgerMachine(RuleBasedStateMachine):
    """A ledger against a list of [key, size, pinned], least recently used first."""

    budget = 20

    def __init__(self) -> None:
        super().__init__()
        self.ledger = TierAccounting(self.budget)
        self.model: list[list[object]] = []
        self.names = 0

    @rule(size=st.integers(1, 25), pinned=st.booleans(), too=st.booleans())
    def admit(self, size: int, pinned: bool, too: bool) -> None:
        victims = self.ledger.victims(size, pinned_too=too)
        order = [row for row in self.model if not row[2]] + [row for row in self.model if row[2] and too]
        need = sum(int(row[1]) for row in self.model) + size - self.budget  # type: ignore[call-overload]
        expected: list[object] | None = []
        for row in order:
            if need <= 0:
                break
            expected.append(row[0])  # type: ignore[union-attr]
            need -= int(row[1])  # type: ignore[call-overload]
        if need > 0:
            expected = None
        assert victims == expected
        if victims is None:
            return
        for key in victims:
            self.ledger.remove(key)
        self.model = [row for row in self.model if row[0] not in victims]
        self.names += 1
        self.ledger.add(str(self.names), size, pinned)
        self.model.append([str(self.names), size, pinned])

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 100), act=st.sampled_from(["touch", "pin", "unpin", "remove"]))
    def change(self, which: int, act: str) -> None:
        row = self.model.pop(which % len(self.model))
        getattr(self.ledger, act)(row[0])
        if act == "remove":
            return
        moved = {"touch": row[2], "pin": True, "unpin": False}[act]
        if act != "touch" and moved == row[2]:
            self.model.insert(which % (len(self.model) + 1), row)
            return
        self.model.append([row[0], row[1], moved])

    @invariant()
    def books_balance(self) -> None:
        assert self.ledger.used == sum(int(row[1]) for row in self.model) <= self.budget  # type: ignore[call-overload]
        assert self.ledger.pinned_bytes == sum(int(row[1]) for row in self.model if row[2])  # type: ignore[call-overload]
        assert len(self.ledger) == len(self.model)


LedgerMachine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLedger = LedgerMachine.TestCase
