"""Prefill's outcomes: one for each window and watch, over takeovers, bad records and lost tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lookout.errors import BadRecordError
from lookout.models.engines import Cost, Question, WindowAnswer, WindowRequest
from lookout.models.windows import Planner
from lookout.runtime.store import (
    Peers,
    StoreSettings,
    TensorClient,
)
from lookout.runtime.worker import DeadLetter, Record, StoredCheckpoint
from lookout.services.prefill.batcher import Batcher
from lookout.streams import AnsweredWindow
from lookout.streams.chains import load_block
from lookout.v1.lineage_pb2 import CAUSE_DAMAGED, CAUSE_QUOTA, Sampling, StreamEvent
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import TOKENS, event_type, verdict_id
from tests.prefill_world import (
    GRID,
    STRIDE_S,
    block_record,
    event_record,
    keep_masks,
    resize,
    stream,
)
from tests.unit.services.prefill_case import (
    CROWD,
    FALL,
    WALL_MS,
    World,
    brief,
    engine_of,
    verdicts,
)


class TestOutcomes:
    def test_one_for_each_window_and_watch(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD)
        found = world.tell(*stream("cam", 5))
        assert brief(found) == [
            *[(0, k, "ANSWERED") for k in range(5) for _ in range(2)],
            *[(0, 5, "GAP")] * 2,
        ]
        assert [each.watch for each in found[:2]] == ["crowd", "fall"]
        assert len({each.id for each in found}) == len(found)
        one = found[9]
        assert one.id == verdict_id("cam", 0, "fall", 1, 4)
        assert (one.stream_start_s, one.stream_end_s) == (2 * STRIDE_S, 5 * STRIDE_S)
        assert (one.start.ToMilliseconds(), one.end.ToMilliseconds()) == (WALL_MS + 4000, WALL_MS + 10_000)
        assert (one.question, one.rule.threshold, one.basis) == (
            FALL.question,
            0.7,
            "key",
        )  # a burst has left: see docs/windows.md
        assert (one.coverage, one.model_digest, one.degraded) == (1.0, "m1", False)
        assert 0 < one.p_yes < 1
        assert found[-1].reason == "silence"

    def test_records_are_cloud_events(self, batcher: Batcher) -> None:
        result = World(batcher, FALL).handle(block_record("cam", 0))
        [output] = result.outputs
        assert (output.topic, output.key, event_type(output.headers)) == (
            "verdicts.v1",
            "cam",
            "lookout.verdict.v1",
        )

    def test_answers_are_the_engine_s(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD)
        found = world.tell(*stream("cam", 4))
        client = TensorClient(Peers(StoreSettings()), None, world.store)
        blocks = [load_block(block_record("cam", k), client, 500_000).block for k in range(4)]
        planner = Planner(engine_of(batcher).layout, world.settings.windows)
        questions = [Question("crowd", CROWD.question), Question("fall", FALL.question)]
        plan = None
        for k in range(4):
            plan = planner.plan(blocks[max(0, k - 2) : k + 1], plan)
            request = WindowRequest(plan, blocks[max(0, k - 2) : k + 1], questions)
            answer = batcher.answer(request).unwrap()
        got = [each.p_yes for each in found if each.window == 3]
        assert got == pytest.approx([each.p_yes for each in answer.answers], abs=1e-6)

    def test_a_hole_is_a_gap_and_lowers_coverage(self, batcher: Batcher) -> None:
        found = World(batcher, FALL).tell(*stream("cam", 5, holes=[2]))
        assert [each[2] for each in brief(found)] == [
            "ANSWERED", "ANSWERED", "GAP", "ANSWERED", "ANSWERED", "GAP",
        ]  # fmt: skip
        assert [round(each.coverage, 3) for each in found[:5]] == [1, 1, 0.667, 0.667, 0.667]

    def test_a_hole_made_by_a_quota_says_so(self, batcher: Batcher) -> None:
        records = stream("cam", 4, holes=[2])
        records[2].block.missing = "9 bytes in 60 s, the limit is 8"
        records[2].block.missing_cause = CAUSE_QUOTA
        found = World(batcher, FALL).tell(*records)
        assert brief(found)[2][2] == "SKIPPED"
        assert found[2].reason.startswith("9 bytes")
        assert found[2].cause == CAUSE_QUOTA

    def test_damaged_frames_are_no_coverage_and_too_many_are_no_answer(self, batcher: Batcher) -> None:
        """Windows of three blocks of four samples. A block with damage loses its missing samples as well."""
        world = World(batcher, FALL, max_damage=0.5)
        records = [block_record("cam", k) for k in range(6)]
        for block, damaged in ((1, [2, 3]), (2, [0, 1, 2, 3]), (3, [3])):
            for frame in damaged:
                records[block].block.frames[frame].corrupt = True
        del records[3].block.frames[2], records[3].block.patches[2]
        records[3].block.patches[2].frames[0] = 2
        resize(records[3].block.embeddings, sum(patch.kept for patch in records[3].block.patches))
        verdicts = world.tell(*records)
        assert [verdict.damaged for verdict in verdicts] == pytest.approx(
            [0, 2 / 8, 6 / 12, 8 / 12, 6 / 12, 2 / 12]
        )
        assert [verdict.coverage for verdict in verdicts] == pytest.approx(
            [1, 6 / 8, 6 / 12, 4 / 12, 6 / 12, 10 / 12]
        )
        assert [kind for _, _, kind in brief(verdicts)] == ["ANSWERED"] * 3 + ["DEGRADED"] + ["ANSWERED"] * 2
        assert verdicts[3].cause == CAUSE_DAMAGED
        assert verdicts[3].reason.startswith(
            "67% of the window's samples are damaged or missing, more than LOOKOUT_MAX_DAMAGE (50%) allows"
        )

    def test_a_new_epoch_starts_anew(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        first = world.tell(*stream("cam", 4))
        second = world.tell(*stream("cam", 4, epoch=1))
        assert brief(second)[0] == (1, 0, "ANSWERED")
        assert second[3].stream_start_s == STRIDE_S
        assert not {each.id for each in first} & {each.id for each in second}
        assert world.tell(block_record("cam", 9)) == []  # of the epoch before

    def test_what_was_decided_is_not_decided_again(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.tell(*[block_record("cam", k) for k in range(3)])
        assert world.tell(block_record("cam", 2), block_record("cam", 0)) == []
        late = event_record("cam", StreamEvent.KIND_LATE, at=1)
        assert world.tell(late) == []
        assert brief(world.tell(block_record("cam", 3))) == [(0, 3, "ANSWERED")]

    def test_missing_blocks_start_the_window_anew(self, batcher: Batcher) -> None:
        found = World(batcher, FALL).tell(block_record("cam", 0), block_record("cam", 5))
        assert [each.stream_start_s for each in found] == [0, 5 * STRIDE_S]

    def test_cost_evidence_and_activity(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD, audit_limit=None)
        crowd, one = world.tell(*[block_record("cam", k) for k in range(4)])[-2:]
        kept = sum(int(keep_masks("cam", 0, k).sum()) for k in (1, 2, 3))
        cost = one.cost
        assert (cost.tokens_total, cost.tokens_kept) == (3 * 4 * GRID * GRID, kept)
        assert (cost.patches_total, cost.patches_encoded) == (4 * cost.tokens_total, 4 * kept)
        assert cost.flops_vision == 4 * 1000 * int(keep_masks("cam", 0, 3).sum())  # of the newest block
        assert 0 < cost.flops_vision + cost.flops_prefill < cost.flops_dense
        assert cost.tokens_text > 0
        longer = len(CROWD.question) - len(FALL.question)  # the tiny model reads bytes
        assert crowd.cost.tokens_question - cost.tokens_question == longer
        assert crowd.cost.flops_question > cost.flops_question > 0
        assert one.evidence[0].row == 0
        assert len(one.evidence) == 3
        assert one.evidence[0].record.topic == "frames.v1"
        moved = keep_masks("cam", 0, 3)[1:].any(0)
        assert not crowd.activity  # its rule has no zones
        bits = np.unpackbits(np.frombuffer(one.activity, np.uint8), bitorder="little")[: GRID * GRID]
        np.testing.assert_array_equal(bits.reshape(GRID, GRID).astype(bool), moved)

    def test_a_text_is_charged_to_its_own_watch(
        self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine: Any = batcher._engine
        if World(batcher, FALL).tell(block_record("cam", 0))[0].p_yes <= 0.5:
            # Random weights say the same to every question: yes and no are exchanged.
            monkeypatch.setattr(engine, "_answer_rows", engine._answer_rows.flip(0))
        told = {}
        for describe in (False, True):
            wordy = Watch.FromString(FALL.SerializeToString())
            wordy.describe = describe
            world = World(batcher, wordy, CROWD, audit_limit=None)
            outcomes = world.tell(*[block_record("cam", k) for k in range(4)])
            told[describe] = {
                watch.id: [(one.cost.flops_question, one.cost.flops_prefill, one.description)
                           for one in outcomes if one.watch == watch.id]
                for watch in (FALL, CROWD)
            }  # fmt: skip
        assert told[True][CROWD.id] == told[False][CROWD.id]
        for (with_text, prefill, text), (plain, same, _) in zip(
            told[True][FALL.id], told[False][FALL.id], strict=True
        ):
            assert (with_text > plain) == bool(text)
            assert prefill == same
        assert any(text for *_, text in told[True][FALL.id])

    def test_dense_cost_of_a_dense_window_is_its_own(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        record = block_record("cam", 0)
        del record.block.patches[1:], record.block.frames[1:]
        resize(record.block.embeddings, GRID * GRID)
        record.block.flops_vision = record.block.flops_vision_dense
        cost = world.tell(record)[0].cost
        assert cost.flops_dense == pytest.approx(cost.flops_vision + cost.flops_prefill, rel=1e-6)

    def test_costs_of_all_verdicts_add_up_to_what_was_computed(self, batcher: Batcher) -> None:
        """Key windows, audits, reuse, a hole, a skipped window, repeated answers, a new epoch, a takeover."""
        spent, spent_s = 0, 0.0

        class Counted:
            """The engine, and what it says each window took."""

            def answer(self, request: WindowRequest) -> WindowAnswer:
                nonlocal spent, spent_s
                answer = batcher.answer(request)
                spent += answer.cost.total_flops
                spent_s += answer.cost.seconds
                return answer

            def forget(self, stream: str) -> None:
                batcher.forget(stream)

        world = World(batcher, FALL, CROWD, key_every=4, skip_after_s=5.0, idle_age_s=60.0)
        world.handler = world.restarted(answers=Counted())
        records = [
            *stream("cam", 9, epoch=1, holes=[3]),
            *[block_record("cam", k, epoch=2, still=k > 3) for k in range(12)],
        ]
        for record in records:
            record.block.tower_us = 1000 if record.block.patches else 0
        outcomes: list[Verdict] = []
        for place, record in enumerate(records):
            world.now = WALL_MS / 1000 + 6 * (place == 5)
            result = world.handle(record)
            outcomes += verdicts(result)
            if place == 16 and result.checkpoint is not None:
                world.handler = world.restarted(answers=Counted())
                world.states["cam"] = world.handler.load("cam", StoredCheckpoint(result.checkpoint, 0))
        windows = {(verdict.epoch, verdict.window): verdict.cost for verdict in outcomes}
        shared = sum(cost.flops_vision + cost.flops_prefill for cost in windows.values())
        questions = sum(verdict.cost.flops_question for verdict in outcomes)
        vision = sum(record.block.flops_vision for record in records)
        assert shared + questions == pytest.approx(spent + vision, abs=len(outcomes))  # shares are rounded
        device_us = sum(verdict.cost.device_us for verdict in outcomes)
        tower_us = sum(record.block.tower_us for record in records)
        assert device_us == pytest.approx(spent_s * 1e6 + tower_us, abs=len(outcomes))
        assert spent_s > 0
        kinds = {verdict.outcome for verdict in outcomes}
        assert kinds == {Verdict.OUTCOME_ANSWERED, Verdict.OUTCOME_GAP, Verdict.OUTCOME_SKIPPED}
        assert {"key", "incremental", "idle"} <= {verdict.basis for verdict in outcomes}

    def test_a_window_that_reuses_no_row_of_a_frame_is_not_incremental(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, key_every=1000)
        world.tell(block_record("cam", 0), block_record("cam", 1))
        plan = world.states["cam"].unit.chain.plan
        assert plan is not None
        prefix = plan.parts[0].stop
        for reused, basis in ((prefix, "full"), (prefix + 1, "incremental")):
            answer = WindowAnswer("cam/0", 1, cost=Cost(tokens_reused=reused))
            assert AnsweredWindow(plan, answer).basis == basis
        assert AnsweredWindow(replace(plan, parent=None), answer).basis == "key"


class TestOneConfiguration:
    def test_no_window_mixes_models(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        found = world.tell(
            block_record("cam", 0, model="m0"),
            *[block_record("cam", k, model="m1") for k in (1, 2, 3)],
        )
        assert brief(found)[0] == (0, 0, "DEGRADED")
        assert [each.outcome for each in found[1:]] == [Verdict.OUTCOME_ANSWERED] * 3
        assert [round(each.coverage, 2) for each in found[1:]] == [0.5, 0.67, 1.0]
        assert [each.degraded for each in found[1:]] == [True, True, False]
        kept = sum(int(keep_masks("cam", 0, k).sum()) for k in (1, 2))
        assert found[2].cost.tokens_kept == kept

    def test_no_window_mixes_grids(self, batcher: Batcher) -> None:
        """A window in which the grid of merge groups changes is degraded by name; later ones are answered."""
        world = World(batcher, FALL)
        changed = [block_record("cam", k) for k in range(6)]
        for record in changed[3:]:
            block = record.block
            block.group_rows, block.group_cols = 2, 8
        found = world.tell(*changed)
        degraded = Verdict.OUTCOME_DEGRADED
        answered = Verdict.OUTCOME_ANSWERED
        assert [each.outcome for each in found] == [answered] * 3 + [degraded] * 2 + [answered]
        assert "4x4 and 2x8" in found[3].reason
        assert "LOOKOUT_INPUT_WIDTH" in found[3].reason
        assert found[5].basis == "key"

    def test_another_sampling_is_degraded_by_name(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        other = block_record("cam", 0)
        other.sampling.CopyFrom(Sampling(step_us=250_000, block_samples=8, window_blocks=3))
        ours = block_record("cam", 1)
        ours.sampling.CopyFrom(world.settings.sampling)
        first, second = world.tell(other, ours)
        assert first.outcome == Verdict.OUTCOME_DEGRADED
        assert "sampled at 4 FPS" in first.reason
        assert "LOOKOUT_FPS" in first.reason
        assert (second.outcome, second.coverage) == (Verdict.OUTCOME_ANSWERED, 0.5)


class TestTakeover:
    def test_at_every_record_the_same_outcomes(self, batcher: Batcher) -> None:
        messages = [*stream("cam", 6, holes=[3]), *stream("cam", 3, epoch=1)]
        want = World(batcher, FALL, CROWD, reuse=False).tell(*messages)
        world, got = World(batcher, FALL, CROWD, reuse=False), []
        for message in messages:
            result = world.handle(message)
            got += verdicts(result)
            assert result.checkpoint is not None
            stored = type(result.checkpoint).FromString(result.checkpoint.SerializeToString())
            assert len(result.checkpoint.SerializeToString()) <= 1024
            world.handler = world.restarted()
            world.states["cam"] = world.handler.load("cam", StoredCheckpoint(stored, 0))
        assert [each.id for each in got] == [each.id for each in want]
        assert [each.p_yes for each in got] == pytest.approx([each.p_yes for each in want], abs=2e-6)

    def test_another_configuration_drops_the_window_and_keeps_the_place(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        for k in range(3):
            result = world.handle(block_record("cam", k))
        assert result.checkpoint is not None
        world.states["cam"] = world.handler.load(
            "cam", StoredCheckpoint(result.checkpoint, 0, config_changed=True)
        )
        assert world.tell(block_record("cam", 2)) == []
        assert [each.stream_start_s for each in world.tell(block_record("cam", 3))] == [3 * STRIDE_S]

    def test_the_configuration_s_digest_follows_the_window_and_the_model(self, batcher: Batcher) -> None:
        world = World(batcher)
        digests = {world.handler.config_digest, world.restarted("m2").config_digest}
        digests.add(World(batcher, describe_tokens=9).handler.config_digest)
        assert len(digests) == 2


class TestTrouble:
    def test_another_model_s_tokens_are_not_answered(self, batcher: Batcher) -> None:
        [found] = World(batcher, FALL).tell(block_record("cam", 0, model="m0"))
        assert (found.outcome, "m0" in found.reason) == (Verdict.OUTCOME_DEGRADED, True)

    def test_a_window_too_long_for_the_model(self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
        long = Watch(id="w", version=1, question="x" * 40_000)
        # As with a smaller model: the limit of a question is below what this one takes.
        monkeypatch.setattr("lookout.services.prefill.watches.read_watch", lambda key, value: (long, None))
        [output] = World(batcher, long).handle(block_record("cam", 0)).outputs
        verdict = json.loads(output.value or b"")
        assert (verdict["outcome"], "position" in verdict["reason"]) == ("degraded", True)

    @pytest.mark.parametrize("wrong", ["bytes", "camera", "keep", "frames", "embeddings", "nothing"])
    def test_bad_records_are_refused_and_counted_once(self, batcher: Batcher, wrong: str) -> None:
        world = World(batcher, FALL)
        world.tell(block_record("cam", 0))
        message = block_record("cam", 1)
        if wrong == "camera":
            message.camera = "other"
        elif wrong == "keep":
            message.block.patches[1].keep = b"\0\0"
        elif wrong == "frames":
            message.block.patches[1].frames[0] = 99
        elif wrong == "embeddings":
            resize(message.block.embeddings, message.block.embeddings.shape[0] + 1)
        elif wrong == "nothing":
            message.ClearField("block")
        value = b"\xff\xff" if wrong == "bytes" else message.SerializeToString()
        record = Record(TOKENS.name, 0, 1, "cam", value)
        with pytest.raises(BadRecordError) as refused:
            world.handler.handle(world.states["cam"], record)
        result = world.handler.rejected(
            world.states["cam"], record, DeadLetter(refused.value.reason, refused.value.detail)
        )
        if wrong in ("bytes", "camera", "nothing"):
            assert result is None
        else:
            assert result is not None
            assert brief(verdicts(result)) == [(0, 1, "DEGRADED")]
            assert world.handler.rejected(world.states["cam"], record, DeadLetter("again")) is None
        assert world.tell(block_record("cam", 2))[0].outcome == Verdict.OUTCOME_ANSWERED
