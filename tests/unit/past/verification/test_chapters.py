"""A chapter that is lost is made again from its records, and answers as the lost one did, to the bit."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lookout.models.engines import load_engine
from lookout.models.engines.transformers.memory import MemoryAnswer, ask
from lookout.models.windows import Planner, StrideBlock
from lookout.past.memory import Chapter, Keep, Past, RangeCache, RetrievalSettings
from lookout.past.memory.chapters import REBUILT, ChapterFolder, ChapterRules, without_doubles
from lookout.past.memory.past import fetch_from
from lookout.past.verification import FleetReplay, born_again
from lookout.runtime.store import LineageBrokenError, Peers, StoreSettings, TensorClient
from lookout.streams.chains import EpochRecords, load_block
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import from_json
from tests.eventually import eventually
from tests.prefill_world import block_record
from tests.tiny_models import checkpoint
from tests.unit.services.test_prefill_remembering import SMALL, Remembering

BLOCKS, EMPTY = 14, 6


class Lost:
    """A camera's epoch as Kafka has it, and the chapters that prefill wrote of it."""

    def __init__(self, root: Path) -> None:
        self.prefill = Remembering(root / "written")
        verdicts: dict[int, list[Verdict]] = defaultdict(list)
        records = [block_record("gate", index, empty=index == EMPTY) for index in range(BLOCKS)]
        for record in records:
            if record.block.index == 9:
                self.prefill.batcher.forget("gate/0")  # a key window in the middle
            if record.block.index == 3:
                alone = Watch(id="alone", version=1, question="Is it?", asked=Watch.ASKED_STRIDES)
                self.prefill.world.publish(alone)
            for output in self.prefill.decide(record).outputs:
                if output.topic == "verdicts.v1":
                    verdict = from_json(output.value, Verdict)
                    verdicts[verdict.window].append(verdict)
        eventually(lambda: self.prefill.lanes.waiting_bytes == 0)
        self.prefill.folder.seal("gate")
        self.epoch = EpochRecords("gate", 0, {record.block.index: record for record in records}, verdicts)
        self.engine = load_engine(checkpoint("internvl"))
        self.root = root

    def again(
        self, wanted: Callable[[EpochRecords, int], bool] = lambda epoch, index: True, gone: int = -1
    ) -> tuple[ChapterFolder, int]:
        """Chapters made again, and the blocks that could not be."""
        client = TensorClient(Peers(StoreSettings()), None, self.prefill.world.store)

        def load(record: TokensRecord) -> StrideBlock:
            if record.block.index == gone:
                raise LineageBrokenError("its segment is past its retention")
            return load_block(record, client, 500_000).block

        settings = self.prefill.world.settings
        fleet = FleetReplay(settings, "m1", self.engine, Planner(self.engine.layout, settings.windows), load)
        folder = ChapterFolder(
            Path(tempfile.mkdtemp(dir=self.root)),
            ChapterRules(Keep(seconds=1e10)),
            self.engine.kv_shape,
            settings=SMALL,
            about={REBUILT: True},
        )
        missing = 0
        for born in born_again(self.epoch, fleet, wanted):
            if born is None:
                missing += 1
            else:
                folder.add(born)
        folder.close()
        return folder, missing

    def close(self) -> None:
        self.prefill.close()
        self.engine.close()


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    with closing(Lost(tmp_path_factory.mktemp("lost"))) as camera:
        yield camera


@pytest.fixture(scope="module")
def whole(lost: Lost) -> ChapterFolder:
    folder, missing = lost.again()
    assert missing == 0
    return folder


def answered(engine: Any, folder: ChapterFolder) -> MemoryAnswer:
    reading = [folder.read(facts.name) for facts in folder.chapters("gate")]
    ranges = RangeCache(fetch_from({chapter.name: files for chapter, files in reading}), 1 << 30)
    past = Past([chapter for chapter, _ in reading], ranges, RetrievalSettings(frames=6, span=4))
    return ask(engine, past, "Is anyone lying?", describe=3)


def head_of(folder: ChapterFolder) -> Chapter:
    (facts,) = folder.chapters("gate")
    return folder.read(facts.name)[0]


def test_a_chapter_made_again_answers_as_the_lost_one(lost: Lost, whole: ChapterFolder) -> None:
    before, after = answered(lost.engine, lost.prefill.folder), answered(lost.engine, whole)
    assert (after.yes_logit, after.no_logit, after.text) == (before.yes_logit, before.no_logit, before.text)
    assert after.evidence == before.evidence
    assert [trace.ids for trace in after.traces] == [trace.ids for trace in before.traces]
    lost_head, head = head_of(lost.prefill.folder).head, head_of(whole).head
    assert head.times_us.tolist() == lost_head.times_us.tolist()
    assert [place.checksum for place, _ in head.scenes] == [place.checksum for place, _ in lost_head.scenes]


def test_a_part_is_made_again_through_its_chain(lost: Lost) -> None:
    again, missing = lost.again(lambda epoch, index: index >= 11)
    assert missing == 0
    assert set((head_of(again).head.times_us // 2_000_000).tolist()) == {11, 12, 13}
    lost_times = head_of(lost.prefill.folder).head.times_us
    assert set(head_of(again).head.times_us.tolist()) < set(lost_times.tolist())


def test_what_is_gone_is_counted_and_the_others_are_there(lost: Lost) -> None:
    again, missing = lost.again(gone=0)
    present = set((head_of(again).head.times_us // 2_000_000).tolist())
    assert missing
    assert 0 not in present
    assert {9, 10, 11, 12, 13} <= present


def test_a_chapter_made_again_stands_back_behind_the_one_that_returned(
    lost: Lost, whole: ChapterFolder
) -> None:
    original, copy = head_of(lost.prefill.folder), head_of(whole)
    assert without_doubles([copy, original]) == ([original], {})
    other = replace(copy, head=replace(copy.head, about={**copy.head.about, "epoch": 1}))
    assert without_doubles([other, original])[0] == [original, other]
    longer = replace(copy.head, times_us=copy.head.times_us + 2_000_000)
    chapters, left_out = without_doubles([replace(copy, head=longer), original])
    assert chapters == [original]
    assert list(left_out) == [copy.name]
