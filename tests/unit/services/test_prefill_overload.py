"""What prefill leaves out when it falls behind, and that its outcomes say so."""

from __future__ import annotations

import pytest

from lookout.engines import WindowAnswer, WindowRequest
from lookout.services.prefill.batcher import Batcher
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from tests.prefill_world import block_record
from tests.unit.services.prefill_case import (
    FALL,
    WALL_MS,
    World,
    brief,
)


class TestAudits:
    def test_late_windows_get_no_audit(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, key_every=3, shed_after_s=1.0)
        world.now = WALL_MS / 1000 + 5
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

        world = World(batcher, FALL, Watch(id="told", version=1, question="?", describe=True), shed_after_s=5)
        world.handler._runner._answers = Overheard()
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

    def test_overload_then_answers_every_second_window(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, shed_after_s=1.0, thin_after_s=5.0, skip_after_s=50.0)
        world.now = WALL_MS / 1000 + 20
        found = world.tell(*[block_record("cam", k) for k in range(4)])
        assert brief(found) == [(0, 0, "ANSWERED"), (0, 1, "SKIPPED"), (0, 2, "ANSWERED"), (0, 3, "SKIPPED")]
        assert "every second window" in found[1].reason
        assert found[2].coverage == 1.0
