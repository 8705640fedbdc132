"""Windows of several cameras in one batch of the engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from lookout.engines import DeviceError, WindowAnswer, WindowRequest
from lookout.errors import DeviceFailedError, TransientError
from lookout.services.prefill.batcher import Batcher, choose_windows
from lookout.windows import Planner
from lookout.wire import TOKENS
from lookout.worker import Record
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
        world.handler._runner._answers = watched
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
        world.handler._runner._answers = slow
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
        world.handler._runner._answers = dead
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
            chosen = choose_windows(waiting, 4, 1)
            batches.append([waiting[index].plan.stream for index in chosen])
            waiting = [each for index, each in enumerate(waiting) if index not in chosen]
        assert batches == [["new-0/0", "old-0/0", "old-1/0"], ["new-1/0"], ["new-2/0"], ["new-3/0"]]

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
        world.handler._runner._answers = frail
        with pytest.raises(torch.OutOfMemoryError):
            world.handle(block_record("cam", 0))
        assert brief(world.tell(block_record("cam", 0))) == [(0, 0, "ANSWERED")]
        frail.close()
        with pytest.raises(TransientError, match="closed"):
            world.handle(block_record("cam", 1))
