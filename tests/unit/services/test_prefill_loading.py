"""Tokens of a window's blocks: fetched once, waited for, lost."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from lookout.errors import TransientError
from lookout.runtime.store import (
    Fetched,
    LineageBrokenError,
    TensorNotMadeError,
    TensorUnavailableError,
)
from lookout.services.prefill.batcher import Batcher
from lookout.v1.lineage_pb2 import TensorRef
from lookout.v1.verdicts_pb2 import Verdict
from tests.prefill_world import (
    block_record,
    keep_masks,
)
from tests.unit.services.prefill_case import (
    FALL,
    World,
    brief,
)


class TestFetching:
    """Windows of three blocks; the camera's key windows are those of its phase."""

    def test_a_window_fetches_one_block(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        fetched = []
        for k in range(6):
            before = world.made
            world.tell(block_record("cam", k))
            fetched.append(world.made - before)
        assert fetched == [1] * 6
        held = sum(int(keep_masks("cam", 0, k).sum()) for k in (3, 4, 5)) * 128 * 4
        assert world.cache.bytes <= held

    def test_blocks_beyond_the_budget_are_fetched_again(self, batcher: Batcher) -> None:
        want = World(batcher, FALL).tell(*[block_record("cam", k) for k in range(5)])
        world = World(batcher, FALL)
        world.cache._budget = 0
        got = world.tell(*[block_record("cam", k) for k in range(5)])
        assert [each.p_yes for each in got] == pytest.approx([each.p_yes for each in want], abs=1e-6)
        assert world.cache.bytes == 0
        assert world.made >= 5

    def test_lost_tokens_in_the_middle_start_with_a_key_window(
        self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(batcher, FALL)
        world.tell(*[block_record("cam", k) for k in range(4)])
        world.cache.leave("cam/0")
        client = world.asker._loader._client
        fetch = client.fetch

        def broken(ref: TensorRef, record: Message) -> Fetched:
            if "/3/" in ref.id:
                raise LineageBrokenError(f"{ref.id} is gone")
            return fetch(ref, record)

        monkeypatch.setattr(client, "fetch", broken)
        found = world.tell(block_record("cam", 4))
        assert (found[0].basis, found[0].degraded) == ("key", True)
        assert found[0].coverage == pytest.approx(2 / 3, abs=1e-6)


class TestLostTokens:
    def test_tokens_that_cannot_be_had_now_are_waited_for(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.breaks = TensorUnavailableError("no pod")
        message = block_record("cam", 0)
        for _ in range(2):
            with pytest.raises(TransientError, match="no pod"):
                world.handle(message)
        world.breaks = None
        assert brief(world.tell(message)) == [(0, 0, "ANSWERED")]

    def test_a_window_waits_for_tokens_only_until_its_deadline(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.breaks = TensorUnavailableError("no pod")
        with pytest.raises(TransientError):
            world.handle(block_record("cam", 0))
        world.now = 301.0
        [found] = world.tell(block_record("cam", 0))
        assert found.outcome == Verdict.OUTCOME_DEGRADED
        assert "300 s" in found.reason

    def test_a_camera_whose_tokens_cannot_be_made_uses_up_its_budget(self, batcher: Batcher) -> None:
        """Its partition waits for 5 s, not for 300 s a window."""
        world = World(batcher, FALL)
        world.breaks = TensorNotMadeError("no such plane")
        found: list[Verdict] = []
        seconds = 0.0
        for k in range(5):
            while True:
                try:
                    found += world.tell(block_record("bad", k))
                    break
                except TransientError:
                    world.now += 1.0
                    seconds += 1.0
        assert [verdict.outcome for verdict in found] == [Verdict.OUTCOME_DEGRADED] * 5
        assert "could not be computed" in found[0].reason
        assert seconds <= 6.0
        world.breaks = None
        assert brief(world.tell(block_record("good", 0))) == [(0, 0, "ANSWERED")]

    def test_lost_lineage_degrades_its_window_only(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.breaks = LineageBrokenError("segment 3 is gone")
        [lost] = world.tell(block_record("cam", 0))
        assert (lost.outcome, lost.reason) == (Verdict.OUTCOME_DEGRADED, "segment 3 is gone")
        world.breaks = None
        [next_one] = world.tell(block_record("cam", 1))
        assert next_one.outcome == Verdict.OUTCOME_ANSWERED
        assert (next_one.coverage, next_one.degraded) == (0.5, True)
