"""Windows in which nothing changed repeat the answer before."""

from __future__ import annotations

import numpy as np
import pytest

from lookout.runtime.worker import StoredCheckpoint
from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.settings import PrefillSettings
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.wire import verdict_id
from tests.prefill_world import (
    STRIDE_S,
    block_record,
    event_record,
)
from tests.unit.services.prefill_case import (
    CROWD,
    FALL,
    WALL_MS,
    World,
    asked_or_idle,
    verdicts,
)


class TestIdle:
    """Windows are of three blocks of two seconds."""

    AGE_S = 20.0

    def test_off_unless_asked_for(self, batcher: Batcher) -> None:
        found = World(batcher, FALL).tell(*[block_record("cam", k, still=True) for k in range(5)])
        assert asked_or_idle(found) == ["asked"] * 5

    def test_a_still_camera_repeats_the_answer_of_its_first_whole_window(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD, idle_age_s=self.AGE_S)
        found = world.tell(*[block_record("cam", k, still=True) for k in range(6)])
        assert asked_or_idle(found) == ["asked"] * 6 + ["idle"] * 6
        assert [each.p_yes for each in found[6:]] == [each.p_yes for each in found[4:6]] * 3
        last = found[-1]
        assert last.id == verdict_id("cam", 0, "fall", 1, 5)
        assert (last.coverage, last.model_digest) == (1.0, "m1")
        assert (last.cost.flops_prefill, last.cost.flops_question) == (0, 0)
        assert last.cost.flops_vision > 0
        assert last.evidence[0].time.ToMilliseconds() == WALL_MS + 5 * STRIDE_S * 1000
        assert not any(last.activity)
        assert (world.counts["idle"], world.counts["key"] + world.counts["incremental"]) == (6, 6)
        assert world.counts["answered"] == 12

    @pytest.mark.slow
    def test_only_what_a_full_answer_would_say_again(
        self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The oracle: the same stream without gating, and the rule by brute force over all blocks."""
        draw = np.random.default_rng(4)
        still = draw.random(60) < 0.85
        luma = (120 + np.cumsum(draw.integers(-1, 2, 60))).astype(int)
        records = [
            block_record("cam", k, still=bool(s), luma=int(grey))
            for k, (s, grey) in enumerate(zip(still, luma, strict=True))
        ]
        asked = World(batcher, FALL, reuse=False).tell(*records)
        monkeypatch.setattr(PrefillSettings, "idle_luma", 2)
        gated = World(batcher, FALL, reuse=False, idle_age_s=self.AGE_S).tell(*records)
        assert [each.id for each in gated] == [each.id for each in asked]
        answered: int | None = None
        for k, (one, other) in enumerate(zip(gated, asked, strict=True)):
            span = slice((answered or 0) - 2, k + 1)
            holds = (
                answered is not None
                and answered >= 2
                and (k - answered) * 2.0 <= self.AGE_S
                and bool(still[span].all())
                and int(np.ptp(luma[span])) <= 2
            )
            assert (one.basis == "idle") == holds, k
            assert one.p_yes == pytest.approx(other.p_yes, abs=2e-6)
            answered = answered if holds else k
        assert 5 < asked_or_idle(gated).count("idle") < 50

    def test_its_age_is_bounded(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, idle_age_s=4.0)
        found = world.tell(*[block_record("cam", k, still=True) for k in range(9)])
        assert asked_or_idle(found[2:]) == ["asked", "idle", "idle"] * 2 + ["asked"]

    def test_a_new_question_a_gap_and_a_takeover_are_answered(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, idle_age_s=self.AGE_S)
        world.tell(*[block_record("cam", k, still=True) for k in range(4)])
        world.publish(CROWD)
        found = world.tell(*[block_record("cam", k, still=True) for k in (4, 5)])
        assert asked_or_idle(found) == ["asked", "asked", "idle", "idle"]
        skipped = world.tell(*[block_record("cam", k, still=True) for k in (7, 8, 9, 10)])
        assert asked_or_idle(skipped[::2]) == ["asked", "asked", "asked", "idle"]
        result = world.handle(block_record("cam", 11, still=True))
        assert result.checkpoint is not None
        again = world.restarted()
        state = again.load("cam", StoredCheckpoint(result.checkpoint, 0))
        record = world.append(block_record("cam", 12, still=True))
        assert asked_or_idle(verdicts(again.handle(state, record))) == ["asked", "asked"]
        world.log.pop()
        stayed = world.handle(block_record("cam", 12, still=True))  # without the takeover it repeats
        assert asked_or_idle(verdicts(stayed)) == ["idle", "idle"]
        world.handle(event_record("cam", StreamEvent.KIND_GAP, at=12))
        begun = world.tell(*[block_record("cam", k, epoch=1, still=True) for k in range(4)])
        assert asked_or_idle(begun[::2]) == ["asked", "asked", "asked", "idle"]

    def test_what_was_not_seen_whole_is_not_idle(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, idle_age_s=self.AGE_S)
        world.tell(*[block_record("cam", k, still=True) for k in range(4)])
        damaged = block_record("cam", 4, still=True)
        damaged.block.frames[1].corrupt = True
        blind = block_record("cam", 8, still=True)
        blind.block.anchor_luma = b""
        records = [damaged, *[block_record("cam", k, still=True) for k in (5, 6, 7)], blind]
        assert asked_or_idle(world.tell(*records)) == ["asked"] * 5
