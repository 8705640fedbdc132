"""Windows of several cameras in one batch of the engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from lookout.errors import DeviceFailedError, TransientError
from lookout.models.engines import DeviceError, WindowAnswer, WindowRequest
from lookout.models.windows import Planner
from lookout.runtime.worker import Record
from lookout.services.prefill.batcher import Batcher, KeyRoom, choose_windows
from lookout.wire import TOKENS
from tests.eventually import eventually
from tests.prefill_world import block_record
from tests.unit.services.prefill_case import (
    FALL,
    World,
    brief,
    engine_of,
    loaded,
    verdicts,
)


@dataclass(frozen=True, slots=True)
class FakePlan:
    """What is read of a plan to choose a batch."""

    stream: str
    parent: str | None
    computed: int


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """What is read of a request to choose a batch."""

    plan: FakePlan
    keep: bool = True


class TestBatcher:
    def test_it_is_idle_between_batches_alone(self, batcher: Batcher) -> None:
        world, idle, during = World(batcher, FALL), threading.Event(), list[bool]()
        engine = engine_of(batcher)

        class Watched:
            """The real engine; what fails is a device."""

            layout = engine.layout

            def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
                during.append(idle.is_set())
                if len(during) > 1:
                    raise DeviceError("the device is gone")
                return engine.run(requests)

            def close(self) -> None:
                """The engine stays."""

        watched = Batcher(Watched(), 4, idle=idle)  # type: ignore[arg-type]
        world.runner._answers = watched
        assert idle.is_set()
        world.tell(block_record("cam0", 0))
        with pytest.raises(DeviceFailedError):
            world.tell(block_record("cam0", 1))
        watched.close()
        assert (during, idle.is_set()) == ([False, False], True)

    def test_windows_that_wait_together_run_together(self, batcher: Batcher) -> None:
        engine, go, started = engine_of(batcher), threading.Event(), threading.Event()
        sizes: list[int] = []

        class SlowEngine:
            """The real engine, held back at its first batch."""

            layout = engine.layout

            def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
                started.set()
                assert go.wait(120), "the other cameras never asked"
                sizes.append(len(requests))
                return engine.run(requests)

            def close(self) -> None:
                """The engine stays."""

        slow = Batcher(SlowEngine(), 4)  # type: ignore[arg-type]
        world = World(batcher, FALL)
        want = {f"cam{n}": world.tell(block_record(f"cam{n}", 0))[0].p_yes for n in range(7)}
        world.runner._answers = slow
        got: dict[str, float] = {}

        def ask(camera: str) -> None:
            state = world.handler.load(camera, None)
            record = Record(TOKENS.name, 0, 0, camera, block_record(camera, 0).SerializeToString())
            got[camera] = verdicts(world.handler.handle(state, record))[0].p_yes

        threads = [threading.Thread(target=ask, args=(camera,)) for camera in want]
        threads[0].start()
        assert started.wait(60)
        for thread in threads[1:]:
            thread.start()
        eventually(lambda: slow._thread.waiting() == 6, 90)  # shorter than the engine is held back
        go.set()
        for thread in threads:
            thread.join()
        slow.close()
        assert sizes == [1, 4, 2]
        assert got == pytest.approx(want, abs=2e-6)

    def test_a_dead_device_decides_nothing(self, batcher: Batcher) -> None:
        class FakeDeadDevice:
            """What an engine does after a CUDA error."""

            def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
                raise DeviceError("CUDA error: an illegal memory access was encountered")

            def close(self) -> None:
                """Nothing to free."""

        dead = Batcher(FakeDeadDevice(), 4)  # type: ignore[arg-type]
        world = World(batcher, FALL)
        world.runner._answers = dead
        with pytest.raises(DeviceFailedError, match="illegal memory access"):
            world.handle(block_record("cam", 0))
        dead.close()

    def test_key_windows_of_a_takeover_let_others_pass(self, batcher: Batcher) -> None:
        """One key window a batch; the windows that reuse KV do not wait for the rest."""
        engine = engine_of(batcher)
        planner = Planner(engine.layout, World(batcher).settings.windows)
        keys = {f"new-{n}/0": planner.plan([loaded(f"new-{n}", 0)]) for n in range(4)}
        old = {f"old-{n}/0": planner.plan([loaded(f"old-{n}", 0)]) for n in range(2)}
        follow = {
            name: planner.plan([loaded(name[:-2], 0), loaded(name[:-2], 1)], plan, key=False)
            for name, plan in old.items()
        }
        waiting = [WindowRequest(plan, []) for plan in (*keys.values(), *follow.values())]
        batches = []
        while waiting:
            chosen = choose_windows(waiting, 4, KeyRoom(1))
            batches.append([waiting[index].plan.stream for index in chosen])
            waiting = [each for index, each in enumerate(waiting) if index not in chosen]
        assert batches == [["new-0/0", "old-0/0", "old-1/0"], ["new-1/0"], ["new-2/0"], ["new-3/0"]]

    def test_key_windows_share_a_batch_as_far_as_rows_and_time_allow(self) -> None:
        """The first one always may; beside others their measured time counts, alone their rows."""
        room = KeyRoom(rows=1000, delay_s=0.5)
        assert room.fits(0, 0, 5000, contended=True)
        assert room.fits(1, 400, 600, contended=False)
        assert not room.fits(1, 400, 601, contended=False)
        assert not room.fits(1, 400, 100, contended=True), "nothing is known of its time yet"
        room.measure(1000, 1.0)
        assert room.fits(1, 400, 100, contended=True)
        assert not room.fits(1, 400, 101, contended=True)
        for _ in range(200):
            room.measure(1000, 0.1)  # the device got faster
        assert room.fits(1, 400, 600, contended=True)
        assert not KeyRoom(limit=2, rows=1000).fits(2, 10, 10, contended=False)

    @given(st.lists(st.tuples(st.booleans(), st.integers(1, 900)), min_size=1, max_size=40), st.data())
    @settings(max_examples=60, deadline=None)
    def test_key_windows_never_hold_others_up_for_longer_than_their_time(
        self, windows: list[tuple[bool, int]], data: st.DataObject
    ) -> None:
        room = KeyRoom(rows=2000, delay_s=0.5)
        room.measure(1000, data.draw(st.floats(0.01, 5.0)))
        waiting: list[Any] = [
            FakeRequest(FakePlan(f"{number}/0", None if key else "p", rows))
            for number, (key, rows) in enumerate(windows)
        ]
        order = data.draw(st.permutations(range(len(waiting))))
        batches = 0
        while waiting:
            chosen = choose_windows(waiting, 8, room, [place for place in order if place < len(waiting)])
            keys = [waiting[place].plan.computed for place in chosen if waiting[place].plan.parent is None]
            others = any(request.plan.parent is not None for request in waiting)
            assert chosen, "no window waits for ever"
            assert len(keys) <= 1 or sum(keys) <= 2000
            assert len(keys) <= 1 or not others or sum(keys) * room._row_s <= 0.5
            waiting = [request for place, request in enumerate(waiting) if place not in chosen]
            batches += 1
        assert batches <= len(windows)

    def test_an_engine_that_breaks_says_so_and_goes_on(self, batcher: Batcher) -> None:
        engine = engine_of(batcher)

        class FakeBreakingEngine:
            """Fails as a whole once: no test can run out of memory on demand."""

            failed = False

            def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
                if not self.failed:
                    self.failed = True
                    raise torch.OutOfMemoryError("no memory")
                return engine.run(requests)

            def close(self) -> None:
                """Nothing to free."""

        frail = Batcher(FakeBreakingEngine(), 4)  # type: ignore[arg-type]
        world = World(batcher, FALL)
        world.runner._answers = frail
        with pytest.raises(torch.OutOfMemoryError):
            world.handle(block_record("cam", 0))
        assert brief(world.tell(block_record("cam", 0))) == [(0, 0, "ANSWERED")]
        frail.close()
        with pytest.raises(TransientError, match="closed"):
            world.handle(block_record("cam", 1))
