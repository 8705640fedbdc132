"""A process's tensors by reference: held, pinned, spilled, found again."""

import threading
from pathlib import Path

import numpy as np
import pytest

from lookout.runtime.store import (
    CameraQuotaError,
    StoreFullError,
    StoreSettings,
    TensorCorruptError,
    TensorStore,
    Unread,
)
from lookout.runtime.store.tensors import checksum
from tests.changed_settings import store_settings
from tests.unit.runtime.store.store_case import kib, ref, store


class TestHolding:
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


class Counted(dict[str, object]):
    """Counts how many entries are walked over."""

    walked = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.walked += len(self)
        return super().__iter__()

    def values(self):  # type: ignore[no-untyped-def]
        self.walked += len(self)
        return super().values()

    def items(self):  # type: ignore[no-untyped-def]
        self.walked += len(self)
        return super().items()


def test_a_turn_looks_at_nothing_that_is_not_concerned() -> None:
    kept = TensorStore(StoreSettings())
    for n in range(2000):
        held = kept.put(ref(f"x{n}", camera=f"camera-{n % 7}"), np.zeros(4, np.uint8), Unread(n % 5, 0.1))
        kept.published([held], n % 5, n)
    kept._tiers._held = counted = Counted(kept._tiers._held)  # type: ignore[assignment]
    for partition in range(5):
        kept.consumed(partition, 0)
    kept.pressure()
    kept.release([ref("x1")])
    kept.consumed(0, 6)
    assert kept.pressure().unread_bytes == 4 * (2000 - 3)
    assert counted.walked == 0


def test_a_camera_over_its_quota_is_refused_and_may_hold_what_is_not_pinned() -> None:
    kept = TensorStore(store_settings(camera_bytes=2048))
    for n, name in enumerate("ab"):
        kept.put(ref(name), kib(n), Unread(0))
    with pytest.raises(CameraQuotaError, match="2048 bytes of camera cam are unread") as caught:
        kept.put(ref("c"), kib(3), Unread(0))
    assert isinstance(caught.value, StoreFullError)
    assert ref("c") not in kept
    kept.put(ref("c"), kib(3))
    assert kept.unread_bytes("cam") == 2048
    kept.release([ref("a")])
    kept.put(ref("c"), kib(3), Unread(0))
    assert kept.unread_bytes("cam") == 2048
