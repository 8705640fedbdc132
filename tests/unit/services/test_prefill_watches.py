"""Which watches, in which version, are asked about a window."""

from __future__ import annotations

import numpy as np
import pytest

from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.watches import Watches
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, ScheduleEntry, Watch
from tests.clock import at
from tests.prefill_world import block_record
from tests.unit.services.prefill_case import (
    CROWD,
    FALL,
    WALL_MS,
    World,
    brief,
)


class TestWatches:
    def test_the_highest_version_active_at_the_window_s_start(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.tell(block_record("cam", 0))
        world.publish(Watch(id="fall", version=2, question="later?", active_from=at(WALL_MS + 4000)))
        found = world.tell(*[block_record("cam", k) for k in range(1, 6)])
        assert [(each.window, each.watch_version) for each in found] == [
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 2),
            (5, 2),
        ]

    def test_a_version_to_come_leaves_the_one_before_in_force_whoever_restarts(
        self, batcher: Batcher
    ) -> None:
        world = World(batcher, FALL)
        world.publish(Watch(id="fall", version=2, question="later?", active_from=at(WALL_MS + 4000)))
        world.handler = world.restarted()
        found = world.tell(*[block_record("cam", k) for k in range(6)])
        assert [each.watch_version for each in found] == [1, 1, 1, 1, 2, 2]

    def test_a_version_whose_rule_cannot_be_followed_leaves_the_one_before_in_force(
        self, batcher: Batcher
    ) -> None:
        world = World(batcher, FALL)
        span = ScheduleEntry(start="01:00", end="02:00", time_zone="Mars/X")
        world.publish(Watch(id="fall", version=2, question="later?", rule=Rule(schedule=[span])))
        found = world.tell(block_record("cam", 0), block_record("cam", 1))
        assert {each.watch_version for each in found} == {1}

    def test_a_deleted_watch_that_comes_back_is_a_new_one(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.delete("fall")
        world.publish(Watch(id="fall", version=1, question="later?", active_from=at(WALL_MS + 4000)))
        assert [each.window for each in world.tell(*[block_record("cam", k) for k in range(6)])] == [4, 5]

    @pytest.mark.slow
    def test_they_are_resolved_once_until_a_version_begins(
        self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The oracle: all versions looked at for every window."""
        world = World(batcher)
        draw = np.random.default_rng(2)
        for number in range(200):
            watch = Watch(
                id=f"w{number % 40}",
                version=number // 40 + 1,
                question="?",
                disabled=bool(draw.random() < 0.1),
                cameras=[] if number % 3 else ["gate-*"],
            )
            watch.active_from.FromMilliseconds(WALL_MS + int(draw.integers(0, 60)) * 1000)
            world.publish(watch)
        watches = Watches(lambda: world.view)
        resolved: list[tuple[str, int]] = []
        resolve = watches._resolve

        def counted(camera: str, start_ms: int, tenant: str) -> object:
            resolved.append((camera, start_ms))
            return resolve(camera, start_ms, tenant)

        monkeypatch.setattr(watches, "_resolve", counted)
        oracle = Watches(lambda: world.view)
        starts = [WALL_MS + step * 250 for step in range(-4, 260)]
        for camera in ("gate-1", "hall"):
            for start in [*starts, *starts[::-7]]:
                oracle._resolved.clear()
                want = [(each.id, each.version) for each in oracle.active(camera, start).watches]
                assert [(each.id, each.version) for each in watches.active(camera, start).watches] == want
        assert len(resolved) < len(starts)
        before = len(resolved)
        for _ in range(50):
            watches.active("hall", starts[-1])
        assert len(resolved) <= before + 1

    def test_cameras_are_globs(self, batcher: Batcher) -> None:
        world = World(batcher, Watch(id="a", version=1, question="?", cameras=["gate-*", "hall"]))
        assert len(world.tell(block_record("gate-1", 0), block_record("hall", 0))) == 2
        assert world.tell(block_record("roof", 0)) == []

    def test_one_of_a_tenant_asks_that_tenant_s_cameras_alone(self, batcher: Batcher) -> None:
        watches = [
            Watch(id=name or "all", version=1, question="?", tenant=name)
            for name in ("", "acme", "globex", "default")
        ]
        world = World(batcher, *watches)

        def asked(camera: str, tenant: str) -> dict[str, str]:
            block = block_record(camera, 0)
            block.labels.tenant = tenant
            return {verdict.watch: verdict.tenant for verdict in world.tell(block)}

        assert asked("gate", "acme") == {"all": "acme", "acme": "acme"}
        assert asked("yard", "globex") == {"all": "globex", "globex": "globex"}
        assert asked("hall", "") == {"all": "", "default": ""}

    def test_a_camera_that_changes_its_tenant_has_the_new_one_s_watches(self, batcher: Batcher) -> None:
        world = World(batcher, Watch(id="acme", version=1, question="?", tenant="acme"))
        blocks = [block_record("gate", index) for index in range(3)]
        blocks[1].labels.tenant = "acme"
        blocks[2].labels.tenant = "globex"
        assert [len(world.tell(block)) for block in blocks] == [0, 1, 0]

    def test_deleted_and_disabled_ones_are_not_asked(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD)
        world.delete("fall")
        world.publish(Watch(id="crowd", version=4, question="?", disabled=True))
        assert world.tell(block_record("cam", 0)) == []

    def test_unreadable_ones_do_not_stop_the_others(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.history |= {"x": (b"{",), "y": (b'{"id": "z", "question": "?"}',), "w": (b'{"id": "w"}',)}
        world.history["fall"] += (b"{",)
        world.publish(CROWD)
        assert {each.watch for each in world.tell(block_record("cam", 0))} == {"fall", "crowd"}

    def test_a_question_that_is_too_long_does_not_stop_the_others(self, batcher: Batcher) -> None:
        """All watches of a camera are asked of one window: one that no model takes would degrade all."""
        endless = Watch(id="endless", version=1, question="Is it " * 100_000 + "?")
        (verdict,) = World(batcher, FALL, endless).tell(block_record("cam", 0))
        assert (verdict.watch, verdict.outcome) == ("fall", Verdict.OUTCOME_ANSWERED)

    def test_nobody_asks_nothing_is_fetched(self, batcher: Batcher) -> None:
        world = World(batcher)
        world.tell(*[block_record("cam", k) for k in range(3)])
        assert world.made == 0
        world.publish(FALL)
        assert brief(world.tell(block_record("cam", 3))) == [(0, 3, "ANSWERED")]
        assert world.made == 3
