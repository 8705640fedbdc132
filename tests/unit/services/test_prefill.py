"""Prefill without Kafka: token records in, outcomes and a checkpoint out, over the real engine and store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import MappingProxyType

import numpy as np
import pytest
import torch
from google.protobuf.message import Message

from lookout.engines import DeviceError, Engine, Question, WindowAnswer, WindowRequest, load_engine
from lookout.runtime import (
    BadRecordError,
    Context,
    DeadLetter,
    DeviceFailedError,
    Record,
    Result,
    StartupError,
    StoredCheckpoint,
    TransientError,
    View,
    load_settings,
)
from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.blocks import load_block
from lookout.services.prefill.chain import Answers, ChainRunner
from lookout.services.prefill.handler import CameraState, PrefillHandler
from lookout.services.prefill.loading import BlockCache, BlockLoader
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.watches import Watches
from lookout.store import (
    Array,
    Fetched,
    LineageBrokenError,
    Peers,
    StoreSettings,
    TensorClient,
    TensorStore,
    TensorUnavailableError,
)
from lookout.v1.lineage_pb2 import STAGE_TOKENS, Sampling, StreamEvent, TensorRef
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Point, Rule, Watch, Zone
from lookout.windows import Planner, StrideBlock
from lookout.wire import TOKENS, event_type, from_json, to_json, verdict_id
from tests.clock import at
from tests.prefill_world import (
    GRID,
    STRIDE_S,
    WALL_US,
    block_record,
    embeddings,
    event_record,
    keep_masks,
    stream,
)
from tests.tiny_models import checkpoint

WALL_MS = WALL_US // 1000
FLOOR = Zone(points=[Point(x=0, y=0), Point(x=1, y=0), Point(x=1, y=1)])
FALL = Watch(id="fall", version=1, question="Is anyone lying?", rule=Rule(threshold=0.7, zones=[FLOOR]))
CROWD = Watch(id="crowd", version=3, question="Are there many people?")


@pytest.fixture(scope="module")
def batcher() -> Iterator[Batcher]:
    batcher = Batcher(load_engine(checkpoint("internvl")), 8)
    yield batcher
    batcher.close()


def engine_of(batcher: Batcher) -> Engine:
    return batcher._engine


class World:
    """A handler, the log its records stand in, and the tokens' store."""

    def __init__(self, batcher: Batcher, *watches: Watch, **values: object) -> None:
        self.batcher = batcher
        self.history: dict[str, tuple[bytes, ...]] = {}
        self.view = View(MappingProxyType({}), 0)
        self.log: list[Record] = []
        self.now = 0.0
        self.store = TensorStore(StoreSettings(memory_bytes=1 << 24, unread_bytes=1 << 24))
        self.store.makes(STAGE_TOKENS, self.make)
        self.made = 0
        self.breaks: Exception | None = None
        self.settings = load_settings(
            PrefillSettings, {"LOOKOUT_MODE": "local"}, stride_s=2.0, window_s=6.0, fps=2.0, **values
        )
        for watch in watches:
            self.publish(watch)
        self.handler = self.restarted()
        self.states: dict[str, CameraState] = {}

    def restarted(self, model: str = "m1", answers: Answers | None = None) -> PrefillHandler:
        """A new process: nothing is held but what the checkpoint and the log say."""
        client = TensorClient(Peers(StoreSettings()), None, self.store)
        self.cache = BlockCache(1 << 24)
        self.audits: list[float] = []
        runner = ChainRunner(
            Planner(engine_of(self.batcher).layout, self.settings.windows),
            answers or self.batcher,
            reuse=self.settings.reuse,
            audit_limit=self.settings.audit_limit,
        )
        return PrefillHandler(
            self.settings,
            Watches(lambda: self.view),
            BlockLoader(client, self.cache, self.settings.fps, self.settings.give_up_s, lambda: self.now),
            runner,
            log=self,
            model_digest=model,
            on_audit=self.audits.append,
            clock=lambda: self.now,
        )

    def make(self, ref: TensorRef, record: Message) -> Array:
        if self.breaks is not None:
            raise self.breaks
        self.made += 1
        return embeddings(ref)

    def publish(self, watch: Watch) -> None:
        self.history[watch.id] = (*self.history.get(watch.id, ()), to_json(watch))
        self.view = View(MappingProxyType(dict(self.history)), self.view.offset + 1)

    def delete(self, watch: str) -> None:
        del self.history[watch]
        self.view = View(MappingProxyType(dict(self.history)), self.view.offset + 1)

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        assert (topic, partition) == (TOKENS.name, 0)
        return [self.log[offset] for offset in offsets]

    def append(self, message: TokensRecord) -> Record:
        record = Record(
            TOKENS.name, 0, len(self.log), message.camera, message.SerializeToString(), (), WALL_MS
        )
        self.log.append(record)
        return record

    def handle(self, message: TokensRecord) -> Result:
        if message.camera not in self.states:
            self.states[message.camera] = self.handler.load(message.camera, None)
        return self.handler.handle(self.states[message.camera], self.append(message))

    def abort(self, camera: str, result: Result | None) -> None:
        """What the worker does after an aborted transaction: load the committed state again."""
        self.handler.released(camera, 0)
        stored = None
        if result is not None and result.checkpoint is not None:
            stored = StoredCheckpoint(result.checkpoint, 0)
        self.states[camera] = self.handler.load(camera, stored)

    def tell(self, *messages: TokensRecord) -> list[Verdict]:
        return [verdict for message in messages for verdict in verdicts(self.handle(message))]


def verdicts(result: Result) -> list[Verdict]:
    return [from_json(output.value or b"", Verdict) for output in result.outputs]


def brief(found: Sequence[Verdict]) -> list[tuple[int, int, str]]:
    return [
        (each.epoch, each.window, Verdict.Outcome.Name(each.outcome).removeprefix("OUTCOME_"))
        for each in found
    ]


def asked_or_idle(found: Sequence[Verdict]) -> list[str]:
    """Whether each answer was computed or repeated."""
    return ["idle" if each.basis == "idle" else "asked" for each in found]


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
        assert (one.question, one.rule.threshold, one.basis) == (FALL.question, 0.7, "incremental")
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
        blocks = [load_block(block_record("cam", k), client, 2.0).block for k in range(4)]
        planner = Planner(engine_of(batcher).layout, world.settings.windows)
        questions = [Question("crowd", CROWD.question), Question("fall", FALL.question)]
        plan = None
        for k in range(4):
            key = planner.is_key("cam/0", k)
            plan = planner.plan(blocks[max(0, k - 2) : k + 1], plan, key=key)
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
        records[2].block.missing = "quota: 9 bytes in 60 s, the limit is 8"
        found = World(batcher, FALL).tell(*records)
        assert brief(found)[2][2] == "SKIPPED"
        assert found[2].reason.startswith("quota: 9 bytes")

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
        assert cost.flops_vision == 1000 * cost.patches_encoded
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

    def test_dense_cost_of_a_dense_window_is_its_own(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        record = block_record("cam", 0)
        del record.block.patches[1:], record.block.frames[1:]
        record.block.embeddings.shape[0] = GRID * GRID
        record.block.flops_vision = record.block.flops_vision_dense
        cost = world.tell(record)[0].cost
        assert cost.flops_dense == pytest.approx(cost.flops_vision + cost.flops_prefill, rel=1e-6)


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

    def test_a_deleted_watch_that_comes_back_is_a_new_one(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.delete("fall")
        world.publish(Watch(id="fall", version=1, question="later?", active_from=at(WALL_MS + 4000)))
        assert [each.window for each in world.tell(*[block_record("cam", k) for k in range(6)])] == [4, 5]

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

        def counted(camera: str, start_ms: int) -> object:
            resolved.append((camera, start_ms))
            return resolve(camera, start_ms)

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

    def test_nobody_asks_nothing_is_fetched(self, batcher: Batcher) -> None:
        world = World(batcher)
        world.tell(*[block_record("cam", k) for k in range(3)])
        assert world.made == 0
        world.publish(FALL)
        assert brief(world.tell(block_record("cam", 3))) == [(0, 3, "ANSWERED")]
        assert world.made == 3


def replayed(world: World, camera: str, found: Sequence[Verdict]) -> list[float]:
    """p(yes) of each verdict, computed again from its chain's key window on an engine that holds nothing."""
    planner = Planner(engine_of(world.batcher).layout, world.settings.windows)
    client = TensorClient(Peers(StoreSettings()), None, world.store)
    again = []
    for verdict in found:
        plan = None
        stream = f"{camera}/{verdict.epoch}"
        for k in range(verdict.window - verdict.since_key, verdict.window + 1):
            first = max(0, k - world.settings.window_blocks + 1)
            records = [block_record(camera, n, epoch=verdict.epoch) for n in range(first, k + 1)]
            blocks = [load_block(record, client, 2.0).block for record in records]
            plan = planner.plan(blocks, plan, key=plan is None)
            questions = [Question(verdict.watch, verdict.question)]
            answer = engine_of(world.batcher).run([WindowRequest(plan, blocks, questions)])[0].unwrap()
        engine_of(world.batcher).close_stream(stream)
        again.append(answer.answers[0].p_yes)
    return again


class TestReuse:
    """Windows of three blocks; the camera's key windows are those of its phase."""

    def test_windows_continue_the_one_before_until_the_next_key_window(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, key_every=5)
        found = world.tell(*[block_record("cam", k) for k in range(14)])
        planner = Planner(engine_of(batcher).layout, world.settings.windows)
        keys = [k for k in range(14) if k == 0 or planner.is_key("cam/0", k)]
        assert [each.window for each in found if each.basis == "key"] == keys
        since = [k - max(key for key in keys if key <= k) for k in range(14)]
        assert [each.since_key for each in found] == since
        assert any(each.cost.tokens_reused > 0 for each in found)
        assert all(each.cost.tokens_reused == 0 for each in found if each.basis == "key")
        assert replayed(world, "cam", found) == pytest.approx([each.p_yes for each in found], abs=1e-5)

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
        assert {each.basis for each in committed} == {"key", "incremental"}
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
        world.handler.released("gone", 0)
        world.tell(block_record("here", 1))
        streams = {each.stream for each in engine_of(batcher).memory()}
        assert "gone/0" not in streams
        assert "here/0" in streams

    def test_what_was_released_while_it_was_computed_leaves_no_kv_either(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.tell(block_record("late", 0))
        state = world.states["late"]
        world.handler.released("late", 0)
        world.handler.handle(state, world.append(block_record("late", 1)))
        world.tell(block_record("other", 0))
        assert "late/0" not in {each.stream for each in engine_of(batcher).memory()}

    def test_lost_tokens_in_the_middle_start_with_a_key_window(
        self, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(batcher, FALL)
        world.tell(*[block_record("cam", k) for k in range(4)])
        world.cache.leave("cam/0")
        client = world.handler._loader._client
        fetch = client.fetch

        def broken(ref: TensorRef, record: Message) -> Fetched:
            if "/3/" in ref.id:
                raise LineageBrokenError(f"{ref.id} is gone")
            return fetch(ref, record)

        monkeypatch.setattr(client, "fetch", broken)
        found = world.tell(block_record("cam", 4))
        assert (found[0].basis, found[0].degraded) == ("key", True)
        assert found[0].coverage == pytest.approx(2 / 3, abs=1e-6)


class TestAudits:
    def test_a_key_window_says_how_far_the_chain_was_off(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD, key_every=4)
        found = world.tell(*[block_record("cam", k) for k in range(12)])
        audited = [each for each in found if each.HasField("audit")]
        assert {each.basis for each in audited} == {"key"}
        assert {each.window for each in audited} == {e.window for e in found if e.basis == "key"} - {0}
        assert world.audits == pytest.approx([each.audit for each in audited[::2]], abs=1e-6)

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

    def test_overload_sheds_them(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, key_every=3, shed_after_s=1.0)
        world.now = WALL_MS / 1000 + 5
        found = world.tell(*[block_record("cam", k) for k in range(9)])
        assert not any(each.HasField("audit") for each in found)
        assert world.audits == []


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
        digests.add(World(batcher, give_up_s=9.0).handler.config_digest)
        assert len(digests) == 2


class TestTrouble:
    def test_tokens_that_cannot_be_had_now_are_waited_for(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, give_up_s=60.0)
        world.breaks = TensorUnavailableError("no pod")
        message = block_record("cam", 0)
        for _ in range(2):
            with pytest.raises(TransientError, match="no pod"):
                world.handle(message)
        world.breaks = None
        assert brief(world.tell(message)) == [(0, 0, "ANSWERED")]

    def test_but_not_for_ever(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, give_up_s=60.0)
        world.breaks = TensorUnavailableError("no pod")
        with pytest.raises(TransientError):
            world.handle(block_record("cam", 0))
        world.now = 61.0
        [found] = world.tell(block_record("cam", 0))
        assert found.outcome == Verdict.OUTCOME_DEGRADED
        assert "60 s" in found.reason

    def test_lost_lineage_degrades_its_window_only(self, batcher: Batcher) -> None:
        world = World(batcher, FALL)
        world.breaks = LineageBrokenError("segment 3 is gone")
        [lost] = world.tell(block_record("cam", 0))
        assert (lost.outcome, lost.reason) == (Verdict.OUTCOME_DEGRADED, "segment 3 is gone")
        world.breaks = None
        [next_one] = world.tell(block_record("cam", 1))
        assert next_one.outcome == Verdict.OUTCOME_ANSWERED
        assert (next_one.coverage, next_one.degraded) == (0.5, True)

    def test_another_model_s_tokens_are_not_answered(self, batcher: Batcher) -> None:
        [found] = World(batcher, FALL).tell(block_record("cam", 0, model="m0"))
        assert (found.outcome, "m0" in found.reason) == (Verdict.OUTCOME_DEGRADED, True)

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

    def test_what_costs_users_least_goes_first(self, batcher: Batcher) -> None:
        with pytest.raises(StartupError, match="LOOKOUT_THIN_AFTER_S"):
            World(batcher, thin_after_s=9.0, skip_after_s=5.0)

    def test_a_window_too_long_for_the_model(self, batcher: Batcher) -> None:
        world = World(batcher, Watch(id="w", version=1, question="x" * 40_000))
        [found] = world.tell(block_record("cam", 0))
        assert found.outcome == Verdict.OUTCOME_DEGRADED
        assert "position" in found.reason

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
            message.block.embeddings.shape[0] += 1
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


def test_settings_come_from_the_environment() -> None:
    environment = {
        "LOOKOUT_MODE": "local",
        "LOOKOUT_WINDOW_S": "40",
        "LOOKOUT_STRIDE_S": "8",
        "LOOKOUT_TOKEN_REPLICAS": "prune-0:7000, prune-1:7000",
        "LOOKOUT_STORE__FETCH_S": "3",
    }
    settings = load_settings(PrefillSettings, environment)
    assert (settings.window_blocks, settings.block_samples) == (5, 16)
    assert settings.token_replicas == ("prune-0:7000", "prune-1:7000")
    assert settings.store.fetch_s == 3.0


def test_a_folder_without_a_model_stops_the_service_by_name() -> None:
    from lookout.services.prefill.__main__ import make_handler

    settings = load_settings(PrefillSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_MODEL_DIR": "/nowhere"})
    context: Context[PrefillSettings] = Context.__new__(Context)
    context.settings = settings
    with pytest.raises(StartupError, match="LOOKOUT_MODEL_DIR=/nowhere"):
        make_handler(context)


def loaded(camera: str, index: int) -> StrideBlock:
    """A block with its tokens."""
    record = block_record(camera, index)
    store = TensorStore(StoreSettings(memory_bytes=1 << 24, unread_bytes=1 << 24))
    store.makes(STAGE_TOKENS, lambda ref, _: embeddings(ref))
    return load_block(record, TensorClient(Peers(StoreSettings()), None, store), 2.0).block


class TestBatcher:
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
        deadline = time.monotonic() + 90  # shorter than the engine is held back: it cannot drain meanwhile
        while slow._queue.qsize() < 6:
            assert time.monotonic() < deadline, f"{slow._queue.qsize()} of 6 windows wait"
            time.sleep(0.01)
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
        waiting: list[tuple[WindowRequest, Future[WindowAnswer]]] = [
            (WindowRequest(plan, []), Future()) for plan in (*keys.values(), *follow.values())
        ]
        limited = Batcher.__new__(Batcher)
        limited._limit, limited._key_limit, limited._late = 4, 1, []
        batches = []
        while waiting:
            limited._late = []
            batches.append([item[0].plan.stream for item in limited._chosen(waiting)])
            waiting = limited._late
        assert batches == [["new-0/0", "old-0/0", "old-1/0"], ["new-1/0"], ["new-2/0"], ["new-3/0"]]

    def test_an_engine_that_breaks_says_so_and_goes_on(self, batcher: Batcher) -> None:
        engine = engine_of(batcher)

        class FakeBreakingEngine:
            """Fails as a whole once: out of memory cannot be had on demand."""

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
        with pytest.raises(RuntimeError, match="closed"):
            world.handle(block_record("cam", 1))


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
        assert world.handler.counts["idle"] == 6

    def test_only_what_a_full_answer_would_say_again(self, batcher: Batcher) -> None:
        """The oracle: the same stream without gating, and the rule by brute force over all blocks."""
        draw = np.random.default_rng(4)
        still = draw.random(60) < 0.85
        luma = (120 + np.cumsum(draw.integers(-1, 2, 60))).astype(int)
        records = [
            block_record("cam", k, still=bool(s), luma=int(grey))
            for k, (s, grey) in enumerate(zip(still, luma, strict=True))
        ]
        asked = World(batcher, FALL, reuse=False).tell(*records)
        gated = World(batcher, FALL, reuse=False, idle_age_s=self.AGE_S, idle_luma=2).tell(*records)
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
