"""Memory, disk and reserve without pins or announcements around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from lookout.runtime.store import StoreFullError
from lookout.runtime.store.labels import Label, labelled
from lookout.runtime.store.tiers import Tiers
from tests.changed_settings import store_settings
from tests.unit.runtime.store.store_case import kib, ref

KIB = 1024


class Shelf:
    """Tiers, and what they told."""

    def __init__(self, memory: int, disk: int = 0, spool: Path | None = None, reserve: int = 4096) -> None:
        settings = store_settings(
            memory_bytes=memory, disk_bytes=disk, spool=spool, reserve_bytes=reserve, unread_bytes=1
        )
        self.told: list[str] = []
        self.tiers = Tiers(settings, self._kept, self._left)

    def _kept(self, label: Label) -> None:
        self.told.append(f"+{label.key}")

    def _left(self, label: Label) -> None:
        self.told.append(f"-{label.key}")

    def add(self, name: str, n: int = 0, *, pinned: bool = False) -> None:
        label, array = labelled(ref(name, n), kib(n), None)
        with self.tiers.lock:
            spilling = self.tiers.add(label, array, pinned=pinned)
        self.tiers.write(spilling)

    def add_to_reserve(self, name: str, n: int = 0) -> None:
        label, array = labelled(ref(name, n), kib(n), None)
        with self.tiers.lock:
            self.tiers.add_to_reserve(label, array)


def test_what_comes_and_goes_is_told() -> None:
    shelf = Shelf(2 * KIB)
    for n, name in enumerate("abc"):
        shelf.add(name, n)
    shelf.tiers.forget("c")
    shelf.tiers.forget("c")
    assert shelf.told == ["+a", "+b", "-a", "+c", "-c"]
    assert (shelf.tiers.counts.evicted, len(shelf.tiers)) == (1, 1)


def test_pinned_ones_stay_and_fill_the_room() -> None:
    shelf = Shelf(2 * KIB)
    shelf.add("a", pinned=True)
    shelf.add("b", pinned=True)
    shelf.add("c")  # forgotten: it is not pinned
    assert ["a" in shelf.tiers, "b" in shelf.tiers, "c" in shelf.tiers] == [True, True, False]
    with pytest.raises(StoreFullError, match="2048 bytes are unread"):
        shelf.add("d", pinned=True)
    assert "d" not in shelf.tiers
    shelf.tiers.unpin(["a", "nobody"])
    shelf.add("d", pinned=True)
    assert ["a" in shelf.tiers, "d" in shelf.tiers] == [False, True]


def test_a_tensor_that_is_added_again_is_pinned_and_stays_once() -> None:
    shelf = Shelf(2 * KIB)
    shelf.add("a")
    shelf.add("a", pinned=True)
    assert (shelf.told, shelf.tiers.memory.used, shelf.tiers.pinned_bytes) == (["+a"], KIB, KIB)


def test_the_reserve_is_apart_and_gives_way_to_the_pipeline() -> None:
    shelf = Shelf(2 * KIB, reserve=2 * KIB)
    shelf.add("a", pinned=True)
    for n, name in enumerate("rst"):
        shelf.add_to_reserve(name, n)
    assert [name in shelf.tiers for name in "arst"] == [True, False, True, True]
    shelf.add("t", 2, pinned=True)
    assert (shelf.tiers.reserve.used, shelf.tiers.memory.used) == (KIB, 2 * KIB)
    shelf.add_to_reserve("t", 2)  # is held
    assert shelf.tiers.reserve.used == KIB


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "pin", "unpin", "read", "forget", "reserve"]), st.integers(0, 9)),
        max_size=40,
    )
)
def test_whatever_happens_budgets_hold_and_bytes_are_right(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    shelf = Shelf(3 * KIB, 4 * KIB, folder, reserve=2 * KIB)
    pinned: set[str] = set()
    for act, n in steps:
        name = str(n)
        if act == "add":
            shelf.add(name, n)
        elif act == "pin":
            try:
                shelf.add(name, n, pinned=True)
                pinned.add(name)
            except StoreFullError:
                assert len(pinned) == 7  # every place of memory and disk
        elif act == "unpin":
            shelf.tiers.unpin([name])
            pinned.discard(name)
        elif act == "forget":
            with shelf.tiers.lock:
                shelf.tiers.forget(name)
            pinned.discard(name)
        elif act == "reserve":
            shelf.add_to_reserve(name, n)
        elif (array := shelf.tiers.read(name)) is not None:
            np.testing.assert_array_equal(array, kib(n))
        assert all(each in shelf.tiers for each in pinned)
        assert shelf.tiers.pinned_bytes == KIB * len(pinned)
        assert shelf.tiers.memory.used <= 3 * KIB
        assert shelf.tiers.reserve.used <= 2 * KIB
        assert len(list(folder.iterdir())) == shelf.tiers.disk.used // KIB <= 4
    for key in map(str, range(10)):
        assert shelf.told.count(f"+{key}") - shelf.told.count(f"-{key}") == (key in shelf.tiers)
