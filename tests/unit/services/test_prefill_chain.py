"""Windows that continue the KV of the one before, and the audits of key windows."""

from __future__ import annotations

import numpy as np
import pytest

from lookout.models.engines import Question, WindowRequest
from lookout.models.windows import Planner
from lookout.runtime.worker import Result, StoredCheckpoint
from lookout.services.prefill.batcher import Batcher
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.v1.verdicts_pb2 import Verdict
from tests.prefill_world import (
    block_record,
    event_record,
    stream,
)
from tests.unit.services.prefill_case import (
    CROWD,
    FALL,
    World,
    engine_of,
    loaded,
    replayed,
    verdicts,
)


class TestReuse:
    """Windows of three blocks; the camera's key windows are those of its phase."""

    @pytest.mark.slow
    def test_windows_continue_the_one_before_until_the_next_key_window(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, key_every=5)
        found = world.tell(*[block_record("cam", k) for k in range(14)])
        planner = Planner(engine_of(batcher).layout, world.settings.windows)
        keys = [each.window for each in found if each.basis == "key"]
        since = [k - max(key for key in keys if key <= k) for k in range(14)]
        assert [each.since_key for each in found] == since
        due = [k for k in range(1, 14) if planner.is_key("cam/0", k) and 2 * (since[k - 1] + 1) >= 5]
        assert due
        assert {0, *due} <= set(keys), "others begin behind a burst"
        assert any(each.cost.tokens_reused > 0 for each in found)
        assert all(each.cost.tokens_reused == 0 for each in found if each.basis == "key")
        assert replayed(world, "cam", found) == pytest.approx([each.p_yes for each in found], abs=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("ended", ["by a gap", "by the next epoch"])
    def test_every_epoch_begins_with_one_key_window(self, batcher: Batcher, ended: str) -> None:
        """Until a block leaves nothing is stale: the windows of a growing epoch compute their new block."""
        world = World(batcher, FALL, key_every=1000)
        for epoch in range(1, 4):
            records = stream("cam", 3, epoch=epoch)
            answers = world.tell(*(records if ended == "by a gap" else records[:-1]))[:3]
            assert [verdict.basis for verdict in answers] == ["key", "incremental", "incremental"]
            assert [verdict.cost.tokens_refreshed for verdict in answers] == [0] * 3
            whole = World(batcher, FALL, reuse=False, key_every=1000).tell(*records)[:3]
            dense = [verdict.p_yes for verdict in whole]
            assert [verdict.p_yes for verdict in answers] == pytest.approx(dense, abs=1e-5)

    @pytest.mark.slow
    def test_strides_that_are_asked_alone_hold_no_kv(self, batcher: Batcher) -> None:
        """A window has the largest p(yes) of its strides, each a window of its own."""
        records = [block_record("cam", k) for k in range(8)]
        world = World(batcher, FALL, preset="strides", key_every=3)
        found = world.tell(*records)
        assert {(each.basis, each.HasField("since_key")) for each in found} == {("strides", False)}
        assert engine_of(batcher).held("cam/0") is None
        planner, blocks = (
            Planner(engine_of(batcher).layout, world.settings.windows),
            world.settings.window_blocks,
        )
        asked, strides = [Question(found[0].watch, found[0].question)], list[float]()
        for k in range(8):
            block = loaded("cam", k)
            request = WindowRequest(planner.plan([block]), [block], asked, keep=False)
            strides.append(engine_of(batcher).run([request])[0].unwrap().answers[0].p_yes)
        assert [each.p_yes for each in found] == pytest.approx(
            [max(strides[max(0, k - blocks + 1) : k + 1]) for k in range(8)], abs=1e-5
        )

    @pytest.mark.slow
    def test_an_aborted_window_is_answered_again_from_a_key_window(self, batcher: Batcher) -> None:
        """KV ran ahead of what was committed; it must not answer."""
        world = World(batcher, FALL)
        committed: list[Verdict] = []
        last: Result | None = None
        draw = np.random.default_rng(3)
        for k in range(12):
            message = block_record("cam", k)
            if draw.random() < 0.4:  # one or two windows are computed and never committed
                world.handle(message)
                if draw.random() < 0.5:
                    world.handle(block_record("cam", k + 1))
                del world.log[k:]
                world.abort("cam", last)
                last = world.handle(message)
                assert verdicts(last)[0].basis == "key"
            else:
                last = world.handle(message)
            committed += verdicts(last)
        assert [each.window for each in committed] == list(range(12))
        assert {verdict.basis for verdict in committed} == {"key", "incremental"}
        assert replayed(world, "cam", committed) == pytest.approx([v.p_yes for v in committed], abs=1e-5)

    def test_a_takeover_and_a_gap_start_with_a_key_window(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        for k in range(3):
            result = world.handle(block_record("cam", k))
        assert result.checkpoint is not None
        assert result.checkpoint.prefill.since_key == verdicts(result)[0].since_key
        world.handler = world.restarted()
        world.states["cam"] = world.handler.load("cam", StoredCheckpoint(result.checkpoint, 0))
        found = world.tell(block_record("cam", 3), block_record("cam", 4), block_record("cam", 5))
        assert found[0].basis == "key"
        assert found[0].stream_start_s == 2.0  # the window is whole again
        world.tell(event_record("cam", StreamEvent.KIND_GAP, at=6))
        assert world.tell(block_record("cam", 0, epoch=1))[0].basis == "key"
        assert "cam/0" not in {each.stream for each in engine_of(batcher).memory()}

    def test_a_lost_stream_is_asked_again_as_a_key_window(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.tell(*[block_record("cam", k) for k in range(4)])
        engine_of(batcher).close_stream("cam/0")  # what a full KV budget does
        found = world.tell(block_record("cam", 4), block_record("cam", 5))
        assert found[0].basis == "key"
        assert replayed(world, "cam", found) == pytest.approx([each.p_yes for each in found], abs=1e-5)

    def test_a_camera_that_is_released_leaves_no_kv(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.tell(block_record("gone", 0), block_record("gone", 1), block_record("here", 0))
        world.release("gone")
        world.tell(block_record("here", 1))
        streams = {each.stream for each in engine_of(batcher).memory()}
        assert "gone/0" not in streams
        assert "here/0" in streams


class TestAudits:
    def test_a_key_window_says_how_far_the_chain_was_off(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD, key_every=4)
        found = world.tell(*[block_record("cam", k) for k in range(12)])
        audited = [each for each in found if each.HasField("audit")]
        assert {each.basis for each in audited} == {"key"}
        assert {each.window for each in audited} == {e.window for e in found if e.basis == "key"} - {0}
        assert world.audits == pytest.approx([each.audit for each in audited[::2]], abs=1e-6)

    @pytest.mark.slow
    def test_the_interval_between_key_windows_follows_the_audits(self, batcher: Batcher) -> None:
        """No difference is below a quarter of nothing: the interval halves at every audit. With a limit that
        nothing reaches it doubles again."""
        strict = World(batcher, FALL, key_every=8, audit_limit=1e-9)
        results = [strict.handle(block_record("cam", k)) for k in range(24)]
        every = [verdicts(each)[0].key_every for each in results]
        assert every[0] == 8
        assert every[-1] == 1
        assert every == sorted(every, reverse=True)
        last = results[-1].checkpoint
        assert last is not None
        assert last.prefill.key_every == 1
        easy = World(batcher, FALL, key_every=8, audit_limit=1.0)
        easy.log = strict.log
        easy.states["cam"] = easy.handler.load("cam", StoredCheckpoint(last, 0))
        found = easy.tell(*[block_record("cam", k) for k in range(24, 48)])
        assert found[0].key_every == 1
        assert found[-1].key_every == 8
