"""What prefill leaves out when it falls behind, and that its outcomes say so."""

from __future__ import annotations

import pytest

from lookout.models.engines import WindowAnswer, WindowRequest
from lookout.services.prefill.batcher import Batcher
from lookout.v1.lineage_pb2 import CAUSE_OVERLOAD
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import PRIORITIES
from tests.prefill_world import block_record
from tests.unit.services.prefill_case import (
    FALL,
    WALL_MS,
    World,
    brief,
)


class TestAudits:
    def test_late_windows_get_no_audit(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, key_every=3, skip_after_s=20.0)
        world.now = WALL_MS / 1000 + 8
        found = world.tell(*[block_record("cam", k) for k in range(9)])
        assert not any(each.HasField("audit") for each in found)
        assert world.audits == []


class TestOldWindows:
    def test_overload_skips_what_is_old(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, skip_after_s=5.0)
        world.now = WALL_MS / 1000 + 6
        [found] = world.tell(block_record("cam", 0))
        assert found.outcome == Verdict.OUTCOME_SKIPPED
        assert world.made == 0
        world.now = WALL_MS / 1000 + 1
        assert brief(world.tell(block_record("cam", 1))) == [(0, 1, "ANSWERED")]

    def test_overload_first_sheds_descriptions_and_says_so(self, batcher: Batcher) -> None:
        asked: list[int] = []

        class Overheard:
            def answer(self, request: WindowRequest) -> WindowAnswer:
                asked.extend(question.describe for question in request.questions)
                return batcher.answer(request)

        world = World(
            batcher, FALL, Watch(id="told", version=1, question="?", describe=True), skip_after_s=20
        )
        world.runner._answers = Overheard()
        found = []
        for late in (4, 6):
            world.now = WALL_MS / 1000 + late
            world.states.clear()
            found.append(world.tell(block_record("cam", 0)))
        told, shed = found
        assert asked == [0, world.settings.describe_tokens, 0, 0]
        assert [each.p_yes for each in shed] == pytest.approx([each.p_yes for each in told], abs=1e-6)
        assert [each.reason for each in (*told, shed[0])] == [""] * 3
        assert shed[1].reason == "overload: older than 5 s, not described"

    def test_windows_of_low_priority_are_left_out_first(self, batcher: Batcher) -> None:
        """A window has the priority of its most important watch."""
        low, high = Watch.PRIORITY_LOW, Watch.PRIORITY_HIGH
        cases = [((low,), 4), ((low, high), 11), ((0,), 5), ((0,), 7), ((low, high), 13)]
        reasons = []
        for priorities, late in cases:
            watches = [
                Watch(id=f"w{number}", version=1, question="Is anyone there?", priority=priority)
                for number, priority in enumerate(priorities)
            ]
            world = World(batcher, *watches, skip_after_s=6.0)
            world.now = WALL_MS / 1000 + late
            reasons.append(world.tell(block_record("cam", 0))[0].reason)
        assert reasons == [
            "overload: older than 3 s, watch of low priority",
            "",
            "",
            "overload: older than 6 s",
            "overload: older than 12 s, watch of high priority",
        ]

    def test_windows_of_cameras_of_low_priority_are_left_out_first(self, batcher: Batcher) -> None:
        """While prefill falls behind, cameras stop being answered in the order of their classes."""
        low, high = Watch.PRIORITY_LOW, Watch.PRIORITY_HIGH
        cameras = {"low": low, "normal": Watch.PRIORITY_UNSPECIFIED, "high": high}
        world = World(batcher, FALL, skip_after_s=8.0)
        answered: dict[int, list[str]] = {}
        reasons: dict[str, str] = {}
        for window, late in ((1, 1), (3, 3), (5, 5), (7, 9), (9, 17)):
            world.now = WALL_MS / 1000 + late
            for camera, priority in cameras.items():
                block = block_record(camera, window)
                block.labels.priority = priority
                [verdict] = world.tell(block)
                reasons[camera] = verdict.reason
                if verdict.outcome == Verdict.OUTCOME_ANSWERED:
                    answered.setdefault(late, []).append(camera)
                else:
                    assert (verdict.outcome, verdict.cause) == (Verdict.OUTCOME_SKIPPED, CAUSE_OVERLOAD)
        assert answered == {1: [*cameras], 3: ["normal", "high"], 5: ["high"]}
        assert reasons == {
            "low": "overload: older than 4 s, camera of low priority",
            "normal": "overload: older than 8 s",
            "high": "overload: older than 16 s, camera of high priority",
        }

    @pytest.mark.parametrize(
        ("camera", "watch", "limit"),
        [("low", "low", 1.5), ("low", "high", 6.0), ("high", "low", 6.0), ("high", "high", 24.0)],
    )
    def test_camera_and_watch_count_both(
        self, batcher: Batcher, camera: str, watch: str, limit: float
    ) -> None:
        asked = Watch(id="a", version=1, question="?", priority=PRIORITIES[watch])
        world = World(batcher, asked, skip_after_s=6.0)
        block = block_record("cam", 0)
        block.labels.priority = PRIORITIES[camera]
        world.now = WALL_MS / 1000 + limit + 0.1
        assert world.tell(block)[0].reason == (
            f"overload: older than {limit:g} s, camera of {camera} priority, watch of {watch} priority"
        )

    def test_overload_then_answers_every_second_window(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, skip_after_s=30.0)
        world.now = WALL_MS / 1000 + 20
        found = world.tell(*[block_record("cam", k) for k in range(4)])
        assert brief(found) == [(0, 0, "ANSWERED"), (0, 1, "SKIPPED"), (0, 2, "ANSWERED"), (0, 3, "SKIPPED")]
        assert "every second window" in found[1].reason
        assert found[2].coverage == 1.0
