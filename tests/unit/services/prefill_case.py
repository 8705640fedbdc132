"""Prefill without Kafka: token records in, outcomes and a checkpoint out, over the real engine and store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from google.protobuf.message import Message

from lookout.models.engines import Engine, Question, WindowRequest
from lookout.models.windows import Planner, StrideBlock
from lookout.runtime.store import (
    Array,
    Peers,
    StoreSettings,
    TensorClient,
    TensorStore,
)
from lookout.runtime.worker import Record, Result, StoredCheckpoint, View, load_settings
from lookout.services.prefill.asking import WindowAsker
from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.handler import PrefillHandler
from lookout.services.prefill.loading import BlockCache, BlockLoader
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.watches import Watches
from lookout.services.prefill.window import OpenWindow
from lookout.streams import Answerer, ChainRule, ChainRunner
from lookout.streams.chains import load_block
from lookout.streams.stages import Camera
from lookout.v1.lineage_pb2 import STAGE_TOKENS, TensorRef
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Point, Rule, Watch, Zone
from lookout.wire import TOKENS, from_json, to_json
from tests.changed_settings import changed_settings
from tests.prefill_world import (
    WALL_US,
    block_record,
    embeddings,
)

WALL_MS = WALL_US // 1000


FLOOR = Zone(points=[Point(x=0, y=0), Point(x=1, y=0), Point(x=1, y=1)])


FALL = Watch(id="fall", version=1, question="Is anyone lying?", rule=Rule(threshold=0.7, zones=[FLOOR]))


CROWD = Watch(id="crowd", version=3, question="Are there many people?")


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
        kind, fields = changed_settings(PrefillSettings, **values)
        self.settings = load_settings(
            kind, {"LOOKOUT_MODE": "local"}, stride_s=2.0, window_s=6.0, fps=2.0, **fields
        )
        for watch in watches:
            self.publish(watch)
        self.handler = self.restarted()
        self.states: dict[str, Camera[OpenWindow]] = {}
        self.counts: Counter[str] = Counter()  # as if everything were committed

    def restarted(self, model: str = "m1", answers: Answerer | None = None) -> PrefillHandler:
        """A new process: nothing is held but what the checkpoint and the log say."""
        client = TensorClient(Peers(StoreSettings()), None, self.store)
        self.cache = BlockCache(1 << 24)
        self.audits: list[float] = []
        planner = Planner(engine_of(self.batcher).layout, self.settings.windows)
        rule = ChainRule(planner, self.settings.reuse, self.settings.audit_limit)
        self.runner = ChainRunner(rule, answers or self.batcher)
        settings, clock = self.settings, lambda: self.now
        self.asker = WindowAsker(
            settings,
            BlockLoader(client, self.cache, settings.step_us, settings.give_up_s, clock),
            self.runner,
            model_digest=model,
            on_audit=self.audits.append,
            clock=clock,
        )
        return PrefillHandler(
            settings, Watches(lambda: self.view), self.asker, records=self, model_digest=model
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
        result = self.handler.handle(self.states[message.camera], self.append(message))
        assert set(result.counts) <= set(self.handler.events)
        self.counts.update(result.counts)
        return result

    def release(self, camera: str) -> None:
        """What the worker does when a camera is given away."""
        self.handler.released(camera, 0)
        self.handler.leave(self.states[camera])

    def abort(self, camera: str, result: Result | None) -> None:
        """What the worker does after an aborted transaction: load the committed state again."""
        self.release(camera)
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
            blocks = [load_block(record, client, 500_000).block for record in records]
            plan = planner.plan(blocks, plan, key=plan is None)
            questions = [Question(verdict.watch, verdict.question)]
            answer = engine_of(world.batcher).run([WindowRequest(plan, blocks, questions)])[0].unwrap()
        engine_of(world.batcher).close_stream(stream)
        again.append(answer.answers[0].p_yes)
    return again


def loaded(camera: str, index: int) -> StrideBlock:
    """A block with its tokens."""
    record = block_record(camera, index)
    store = TensorStore(StoreSettings(memory_bytes=1 << 24, unread_bytes=1 << 24))
    store.makes(STAGE_TOKENS, lambda ref, _: embeddings(ref))
    return load_block(record, TensorClient(Peers(StoreSettings()), None, store), 500_000).block
