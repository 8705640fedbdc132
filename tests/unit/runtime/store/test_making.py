"""Tensors that are made again on request."""

import threading

import numpy as np
import pytest

from lookout.runtime.store import LineageBrokenError, StoreError, Unread
from lookout.runtime.store.making import Makers
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef
from tests.eventually import eventually
from tests.unit.runtime.store.store_case import kib, ref, store


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

    def test_another_shape_than_the_record_says_is_refused(self) -> None:
        kept = store(4096)
        filled = kept.put(ref("a"), kib(1))
        kept.drop(filled)
        kept.makes(STAGE_FRAMES, lambda ref, record: kib(1, 2))
        with pytest.raises(LineageBrokenError, match=r"\(2, 1024\)"):
            kept.materialize(filled, FramesRecord())


def test_requests_at_one_time_are_made_once() -> None:
    made: list[str] = []
    asked, go = threading.Barrier(5), threading.Event()

    def make(ref: TensorRef, record: object) -> np.ndarray:
        made.append(ref.id)
        assert go.wait(60)
        return kib(1)

    makers = Makers(2)
    makers.register(STAGE_FRAMES, make)
    out: list[np.ndarray] = []

    def ask() -> None:
        asked.wait(60)
        out.append(makers.make(ref("a"), FramesRecord(), lambda array: array))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    asked.wait(60)
    # Until all four wait for one future: its condition knows who waits.
    eventually(lambda: made and len(makers._running["a"]._condition._waiters) == 3)
    go.set()
    for thread in threads:
        thread.join()
    assert (made, makers.made, len(out)) == (["a"], 1, 4)


def test_failures_reach_the_caller_and_are_tried_again() -> None:
    def broken(ref: TensorRef, record: object) -> np.ndarray:
        raise LineageBrokenError("segment camera.segments.v1/0@5 is gone")

    makers = Makers(1)
    makers.register(STAGE_FRAMES, broken)
    for _ in range(2):
        with pytest.raises(LineageBrokenError, match="gone"):
            makers.make(ref("a"), FramesRecord(), lambda array: array)
    assert makers.made == 0


def test_a_stage_that_nobody_makes_is_named() -> None:
    makers = Makers(1)
    assert not makers.can_make(ref("a"))
    with pytest.raises(StoreError, match=f"stage {STAGE_FRAMES}"):
        makers.make(ref("a"), FramesRecord(), lambda array: array)
