"""How long a full store is waited for, and what a camera over its quota is told."""

from __future__ import annotations

import pytest

from lookout.errors import TransientError
from lookout.runtime.store import CameraQuotaError, Keeper, TensorStore, Unread
from tests.changed_settings import store_settings
from tests.unit.runtime.store.store_case import kib, ref


class Shelf:
    """A keeper with a clock of its own."""

    def __init__(self, **settings: float) -> None:
        self.now = 0.0
        given = {"memory_bytes": 4096, "unread_bytes": 4096, "camera_wait_s": 10.0}
        self.store = TensorStore(store_settings(**{**given, **settings}))
        self.keeper = Keeper(self.store, lambda: self.now)

    def put(self, name: str, camera: str = "cam") -> None:
        self.keeper.put(ref(name, camera=camera), kib(1), Unread(0))


def test_a_full_store_is_waited_for_without_end() -> None:
    shelf = Shelf()
    for n in range(4):
        shelf.put(f"a{n}", f"cam-{n}")
    for now in (0.0, 1e6):
        shelf.now = now
        with pytest.raises(TransientError, match="no room"):
            shelf.put("b", "cam-b")


def test_a_camera_over_its_quota_waits_once() -> None:
    shelf = Shelf(camera_bytes=1024)
    shelf.put("a")
    shelf.keeper.check("other")
    for now, error in ((0.0, TransientError), (9.9, TransientError), (10.0, CameraQuotaError)):
        shelf.now = now
        with pytest.raises(error, match="1024 bytes of camera cam are unread"):
            shelf.keeper.check("cam")
        with pytest.raises(error, match="1024 bytes of camera cam are unread"):
            shelf.put("b")
    shelf.put("c", "other")
    shelf.store.release([ref("a")])
    shelf.keeper.check("cam")
    shelf.put("b")


def test_the_wait_begins_anew_when_the_camera_does() -> None:
    shelf = Shelf(camera_bytes=1024)
    shelf.put("a")
    for _ in range(2):
        with pytest.raises(TransientError):
            shelf.keeper.check("cam")
        shelf.now += 10.0
        with pytest.raises(CameraQuotaError):
            shelf.keeper.check("cam")
        shelf.keeper.forget("cam")
