"""A fleet without Kafka: the handlers of decode, prune-encode and prefill, one camera, records in lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from lookout.models.digest import folder_digest
from lookout.models.engines import load_engine
from lookout.models.families import load_tower
from lookout.models.windows import Planner
from lookout.past.memory import Keep
from lookout.past.memory.chapters import ChapterFolder, ChapterRules
from lookout.rules.masks import Masks
from lookout.runtime.store import Peers, StoreSettings, TensorClient, TensorStore
from lookout.runtime.worker import Record, Result, View, load_settings
from lookout.services.decode.handler import DecodeHandler
from lookout.services.decode.settings import DecodeSettings
from lookout.services.prefill.asking import WindowAsker
from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.handler import PrefillHandler
from lookout.services.prefill.loading import BlockCache, BlockLoader
from lookout.services.prefill.remembering import Captures, ChapterLanes
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.watches import Watches
from lookout.services.prune_encode.encoder import Encoder
from lookout.services.prune_encode.handler import PruneEncodeHandler
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.streams import ChainRule, ChainRunner
from lookout.streams.chains import PlacedBlock
from lookout.streams.filmed import SegmentDecoder
from lookout.v1.lineage_pb2 import STAGE_TOKENS
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.video.segments import SoftwareDecoder
from lookout.wire import FRAMES, SEGMENTS, TOKENS, VERDICTS, from_json, to_json
from lookout.wire.headers import Headers

START_MS = 1_700_000_000_000


class OneProcessFleet:
    """What the services do with the segments of one camera, in their order.

    Args:
        model: Folder of the checkpoint.
        watches: What is asked.
        camera: The camera's id.
        prefill: Settings of prefill alone.
        decoder: Decodes segments; None: this process does.
        masks: What is hidden of the camera.
        memory: Folder in which prefill remembers committed windows; None: it remembers none.
        values: Settings of all stages.

    Attributes:
        tokens: Records of tokens.v1.
        verdicts: Committed outcomes.
    """

    def __init__(
        self,
        model: Path,
        *watches: Watch,
        camera: str = "cam",
        prefill: Mapping[str, object] | None = None,
        decoder: SegmentDecoder | None = None,
        masks: Masks | None = None,
        memory: Path | None = None,
        **values: object,
    ) -> None:
        self.camera, self.model = camera, model
        self.digest = folder_digest(model)
        self.topics: dict[str, list[Record]] = defaultdict(list)
        self.now_ms = START_MS
        given = {"mode": "local", "model_dir": model, **values}
        self.settings = load_settings(PrefillSettings, {}, **given, **(prefill or {}))
        self.store = TensorStore(StoreSettings(memory_bytes=1 << 28, unread_bytes=1 << 28))
        self.client = TensorClient(Peers(StoreSettings()), None, self.store)
        prune = load_settings(PruneEncodeSettings, {}, **given)
        self.encoder = Encoder(load_tower(model), prune.batch)
        self.engine = load_engine(model)
        captures = Captures(self.engine, self.settings.step_us)
        self.batcher = Batcher(self.engine, 8, after=None if memory is None else captures.after)
        self.lanes: ChapterLanes | None = None
        if memory is not None:
            rules = ChapterRules(Keep(seconds=1e10))
            self.lanes = ChapterLanes(captures, ChapterFolder(memory, rules, self.engine.kv_shape))
        view = View(MappingProxyType({watch.id: (to_json(watch),) for watch in watches}), 1)
        planner = Planner(self.engine.layout, self.settings.windows)
        self.decode = DecodeHandler(
            load_settings(DecodeSettings, {}, **given),
            decoder or SoftwareDecoder(),
            self.store,
            self,
            masks=masks,
        )
        self.prune = PruneEncodeHandler(
            prune, self.encoder, self.store, self.client, self, model_digest=self.digest
        )
        asker = WindowAsker(
            self.settings,
            BlockLoader(self.client, BlockCache(1 << 26), self.settings.step_us, self.settings.give_up_s),
            ChainRunner(ChainRule(planner, audit_limit=self.settings.audit_limit), self.batcher),
            model_digest=self.digest,
        )
        self.prefill = PrefillHandler(
            self.settings,
            Watches(lambda: view),
            asker,
            records=self,
            model_digest=self.digest,
            memory=self.lanes,
        )
        self._decoded = self.decode.load(camera, None)
        self._pruned = self.prune.load(camera, None)
        self._prefilled = self.prefill.load(camera, None)

    @property
    def tokens(self) -> list[TokensRecord]:
        """Records of tokens.v1."""
        return [TokensRecord.FromString(record.value) for record in self.topics[TOKENS.name]]

    @property
    def verdicts(self) -> list[Verdict]:
        """Committed outcomes."""
        return [from_json(record.value, Verdict) for record in self.topics[VERDICTS.name]]

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        """Records of a topic, read again."""
        return [self.topics[topic][offset] for offset in offsets]

    def send(self, data: bytes, after_ms: int = 2000, headers: Headers = ()) -> None:
        """One segment of the camera, and what all stages make of it."""
        self.now_ms += after_ms
        segment = self._append(SEGMENTS.name, data, headers)
        self._prune(self.decode.handle(self._decoded, segment))

    def name_model(self, digest: str) -> None:
        """From now on records of tokens name another model, as during a rollout of one."""
        self.prune.closer = replace(self.prune.closer, model=digest)
        self.store.makes(STAGE_TOKENS, self.prune.closer.materialize)

    def end(self) -> None:
        """Silence, until decode writes the gap."""
        for _ in range(400):
            self.now_ms += 500
            result = self.decode.tick(self._decoded, self.now_ms / 1000)
            if result is not None and result.outputs:
                self._prune(result)
                return
        raise AssertionError("decode wrote no gap")

    def close(self) -> None:
        """Seal what is remembered, and free the models."""
        if self.lanes is not None:
            self.lanes.close()
        self.batcher.close()
        self.encoder.close()

    def _append(self, topic: str, value: bytes, headers: Headers = ()) -> Record:
        log = self.topics[topic]
        log.append(Record(topic, 0, len(log), self.camera, value, headers, self.now_ms))
        return log[-1]

    def _prune(self, decoded: Result) -> None:
        assert decoded.dead_letter is None
        for output in decoded.outputs:
            frames = self._append(output.topic, output.value or b"")
            if output.topic != FRAMES.name:
                continue
            for tokens in self.prune.handle(self._pruned, frames).outputs:
                record = self._append(TOKENS.name, tokens.value or b"")
                decided = self.prefill.handle(self._prefilled, record)
                for verdict in decided.outputs:
                    self._append(VERDICTS.name, verdict.value or b"")
                if decided.then is not None:
                    decided.then()


class FleetLog:
    """The camera's partition, as a back-test reads it. `lowest` moves as retention does."""

    def __init__(self, fleet: OneProcessFleet) -> None:
        self.fleet, self.lowest = fleet, 0

    def blocks(self, first: int, stop: int) -> tuple[Sequence[PlacedBlock], bool]:
        """The blocks of a range."""
        records = self.fleet.topics[TOKENS.name]
        placed = [
            PlacedBlock(record.offset, record.timestamp_ms, TokensRecord.FromString(record.value))
            for record in records[max(first, self.lowest) : stop]
        ]
        return [block for block in placed if block.record.HasField("block")], stop > len(records)

    def verdicts(self, since_ms: int, until_ms: int) -> Iterator[Verdict]:
        """The verdicts of a time."""
        for record in self.fleet.topics[VERDICTS.name]:
            if since_ms <= record.timestamp_ms <= until_ms:
                yield from_json(record.value, Verdict)
