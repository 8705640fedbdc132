"""Answers over chapters equal, to the bit, those over the memory itself, wherever the chapters' bytes are."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lookout.models.engines import WindowRequest
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.engines.transformers.memory import MemoryAnswer, ask
from lookout.models.engines.transformers.recall import StreamRecall
from lookout.models.windows import Planner, WindowSettings
from lookout.past.memory import (
    Chapter,
    LostChapterError,
    MemoryFolder,
    MemorySettings,
    Past,
    Predictor,
    RangeCache,
    RetrievalSettings,
)
from lookout.past.memory.catalogue import Catalogue, Files, Head, SnapshotFiles
from lookout.past.memory.past import ChapterRange, fetch_from
from lookout.past.memory.sealed import FolderFiles, read_head
from tests.tiny_models import FAMILIES, checkpoint
from tests.unit.models.engines.scenes import block

WINDOW = 3
SETTINGS = MemorySettings(
    window=WINDOW, construct=4, cluster_tokens=12, visual_frames=4, smallest=4, resident_bytes=1 << 14
)
LITTLE = RetrievalSettings(frames=5, span=4)
TEXT = "Is anyone lying?"


OPENED: list[StreamRecall] = []


@functools.cache
def engine_of(family: str) -> TransformersEngine:
    return load_engine(checkpoint(family), budget_bytes=1 << 30)


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def played(
    folder: Path, family: str, blocks: Sequence[int], *, seed: int = 9
) -> tuple[TransformersEngine, StreamRecall]:
    """A stream whose memory is kept in a folder, fed window by window."""
    engine = engine_of(family)
    keeper = StreamRecall(engine, "1h", settings=SETTINGS, folder=folder)
    planner = Planner(engine.layout, WindowSettings(blocks=WINDOW, key_every=4))
    plan = None
    history = {index: block(family, "past/0", index, frames=2, seed=seed) for index in blocks}
    for number, index in enumerate(blocks):
        window = [history[other] for other in blocks[max(0, number - WINDOW + 1) : number + 1]]
        plan = planner.plan(window, plan)
        engine.run([WindowRequest(plan, window)])[0].unwrap()
        keeper.close_block(plan, history[index])
    OPENED.append(keeper)
    return engine, keeper


def opened(keeper: StreamRecall) -> MemoryFolder:
    assert isinstance(keeper._held, MemoryFolder)
    return keeper._held


def growing(name: str, folder: MemoryFolder) -> tuple[Chapter, Files]:
    catalogue = Catalogue(folder.memory.snapshot(), folder.memory.shape, {})
    head = Head.unpacked(catalogue.head.packed(), name)
    return Chapter(name, head), SnapshotFiles(catalogue)


def sealed(name: str, folder: MemoryFolder) -> tuple[Chapter, Files]:
    folder.seal()
    return Chapter(name, read_head(folder.folder)), FolderFiles(folder.folder)


def past(*chapters: tuple[Chapter, Files], **options: Any) -> Past:
    files = {chapter.name: file for chapter, file in chapters}
    ranges = RangeCache(fetch_from(files), 1 << 30)
    return Past([chapter for chapter, _ in chapters], ranges, LITTLE, **options)


def facts(answer: MemoryAnswer) -> list[object]:
    return [answer.yes_logit, answer.no_logit, answer.text, answer.evidence]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_chapter_that_grows_answers_as_its_memory(tmp_path: Path, family: str) -> None:
    engine, keeper = played(tmp_path / "one", family, range(9))
    shot = opened(keeper).memory.snapshot()
    ways: list[dict[str, Any]] = [{}, {"since_us": 2_000_000}, {"until_us": int(shot.times_us[-3])}]
    for options in ways:
        expected = ask(engine, shot, TEXT, retrieval=LITTLE, describe=3, **options)
        answer = ask(engine, past(growing("a", opened(keeper)), **options), TEXT, describe=3, **options)
        assert facts(answer) == facts(expected)
        assert [trace.ids for trace in answer.traces] == [trace.ids for trace in expected.traces]


def test_a_sealed_chapter_answers_as_its_memory(tmp_path: Path) -> None:
    engine, keeper = played(tmp_path / "one", "internvl", range(9))
    chapter = sealed("a", opened(keeper))
    shot = opened(keeper).memory.snapshot()
    assert not shot.window
    expected = ask(engine, shot, TEXT, retrieval=LITTLE, describe=3)
    assert facts(ask(engine, past(chapter), TEXT, describe=3)) == facts(expected)


@pytest.mark.slow
@pytest.mark.parametrize("predictor", list(Predictor))
def test_what_is_fetched_ahead_and_a_full_cache_change_no_bit(tmp_path: Path, predictor: Predictor) -> None:
    engine, first = played(tmp_path / "one", "qwen2_5_vl", range(8))
    _, second = played(tmp_path / "two", "qwen2_5_vl", range(8, 14), seed=4)
    chapters = [sealed("a", opened(first)), growing("b", opened(second))]
    expected = ask(engine, past(*chapters), TEXT, describe=3, predictor=Predictor.NONE)
    answer = ask(engine, past(*chapters), TEXT, describe=3, predictor=predictor)
    assert facts(answer) == facts(expected)
    small = past(*chapters)
    assert isinstance(small.ranges, RangeCache)
    small.ranges._budget = 1
    assert facts(ask(engine, small, TEXT, describe=3, predictor=predictor)) == facts(expected)


@pytest.mark.slow
def test_two_chapters_are_read_as_one_memory(tmp_path: Path) -> None:
    """With room for everything, every token of both is read."""
    engine, first = played(tmp_path / "one", "internvl", range(8))
    _, second = played(tmp_path / "two", "internvl", range(8, 14), seed=4)
    chapters = [sealed("a", opened(first)), growing("b", opened(second))]
    files = {chapter.name: file for chapter, file in chapters}
    whole = Past(
        [chapter for chapter, _ in chapters],
        RangeCache(fetch_from(files), 1 << 30),
        RetrievalSettings(frames=10_000, span=5),
    )
    answer = ask(engine, whole, TEXT)
    tokens = sum(int(layer.counts.sum()) for layer in whole.layers) / len(whole.layers)
    assert answer.cost.memory_tokens == tokens
    window = sum(entry.rows for entry in whole.window)
    assert answer.cost.window_tokens == window
    assert tokens + window == sum(chapter.head.tokens for chapter, _ in chapters)


def test_a_chapter_that_is_gone_is_named(tmp_path: Path) -> None:
    engine, keeper = played(tmp_path / "one", "internvl", range(9))
    reading = past(growing("a", opened(keeper)))

    def gone(requests: Sequence[ChapterRange]) -> list[bytes]:
        raise LostChapterError("a", "its holder died")

    assert isinstance(reading.ranges, RangeCache)
    reading.ranges._fetch = gone
    with pytest.raises(LostChapterError, match="chapter a cannot be read: its holder died"):
        ask(engine, reading, TEXT, predictor=Predictor.RESIDUAL)


def test_damaged_bytes_answer_nothing(tmp_path: Path) -> None:
    engine, keeper = played(tmp_path / "one", "internvl", range(9))
    chapter, _ = sealed("a", opened(keeper))
    (slabs,) = (tmp_path / "one").glob("slabs-*.bin")
    data = bytearray(slabs.read_bytes())
    for place in range(0, len(data), 40):
        data[place] ^= 1
    slabs.write_bytes(bytes(data))
    with pytest.raises(LostChapterError, match="checksum does not match"):
        ask(engine, past((chapter, FolderFiles(tmp_path / "one"))), TEXT)
