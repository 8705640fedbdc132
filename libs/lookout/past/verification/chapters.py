"""Rebuilds chapters whose holder is lost, by replaying their chains from Kafka."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookout.models.engines import EngineError, Question
from lookout.models.engines.born import KeepsRows, born_block, prefix_of
from lookout.past.chapters.durable import DurableTier
from lookout.past.erasures import read_fence
from lookout.past.memory import Chapter, Keep, MemorySettings
from lookout.past.memory.chapters import REBUILT, Born, ChapterFolder, ChapterRules
from lookout.past.verification.fleet import FleetReplay, fleet_replay
from lookout.streams import STRIDES
from lookout.streams.chains import (
    EpochRecords,
    PastScope,
    chain_verdict,
    chain_windows,
    read_epochs,
    replay_epoch,
)
from lookout.v1.verdicts_pb2 import Verdict

#: returns whether the block with this index in an epoch has to be rebuilt
Wanted = Callable[[EpochRecords, int], bool]


@dataclass(slots=True)
class Rebuilt:
    """The result of rebuilding chapters.

    Attributes:
        blocks: Number of blocks rebuilt.
        gone: Number of blocks whose records or segments are past their retention.
        chapters: Number of chapters stored.
    """

    blocks: int = 0
    gone: int = 0
    chapters: int = 0


def rebuild_chapters(
    model: Path,
    bootstrap: str,
    scope: PastScope,
    tier: DurableTier,
    present: Callable[[str], Sequence[Chapter]],
    *,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> Rebuilt:
    """Rebuild the blocks in scope that neither a holder nor the durable tier has, and store their chapters in
    the durable tier.

    Args:
        model: Folder of the fleet's model.
        bootstrap: Addresses of the Kafka brokers.
        scope: Cameras and time range to rebuild.
        tier: The durable tier that stores the chapters.
        present: Returns the chapters of a camera that can be read now.
        common: Settings of the whole fleet that differ from the defaults.
        own: Settings of single services that differ from the defaults, by service name.

    Raises:
        LookoutError: The settings or the model cannot be used, or the tier fails.
        TimeoutError: A topic cannot be read to its end.
    """
    out = Rebuilt()
    with (
        fleet_replay(model, bootstrap, common, own) as fleet,
        tempfile.TemporaryDirectory() as scratch,
    ):
        settings = fleet.settings
        folder = _folder(fleet, Path(scratch))
        reach_s = (settings.windows.longest_chain + settings.window_blocks) * settings.stride_s
        for epoch in read_epochs(settings, scope, reach_s):
            times = _times(present(epoch.camera), epoch.epoch)

            def wanted(records: EpochRecords, index: int, times: np.ndarray = times) -> bool:
                return scope.includes(records.camera, records.end_ms(index)) and not _is_present(
                    records, index, times
                )

            for born in born_again(epoch, fleet, wanted):
                if born is None:
                    out.gone += 1
                else:
                    out.blocks += folder.add(born)
            folder.seal(epoch.camera)
        for facts in folder.chapters():
            tier.upload(facts)
            out.chapters += 1
        # Repeat all erasures, because one requested meanwhile may have been applied before these uploads.
        for facts in folder.chapters():
            for erasure in read_fence(settings).of(facts.camera):
                tier.erase(facts.camera, erasure.begin_us, erasure.end_us)
    return out


def born_again(epoch: EpochRecords, fleet: FleetReplay, wanted: Wanted) -> Iterator[Born | None]:
    """Yield the wanted blocks of an epoch with the KV that prefill stored for them in chapters.

    Prefill stored blocks of computed windows only, so others are skipped. Windows are asked the same
    questions as before, so that every pass of the engine is the same.

    Args:
        epoch: The records of the epoch.
        fleet: Replays the epoch.
        wanted: Which blocks to yield; windows between them are computed if a chain needs them.

    Yields:
        Each wanted block, in order of time; None instead of a block if the records that its window needs are
        gone.

    Raises:
        EngineError: The engine cannot export KV.
    """
    engine = fleet.engine
    if not isinstance(engine, KeepsRows):
        raise EngineError(f"engine {fleet.settings.engine} cannot export KV, which chapters need")
    windows = [
        replace(window, questions=_questions(epoch.verdicts[window.index]))
        for window in chain_windows(epoch)
        if window.index in epoch.blocks
        and chain_verdict(epoch.verdicts.get(window.index, ())) is not None
        and wanted(epoch, window.index)
    ]
    for played in replay_epoch(
        epoch,
        windows,
        engine,
        fleet.planner,
        fleet.load,
        model_digest=fleet.model_digest,
        sampling=fleet.settings.sampling,
    ):
        if played.answered is None:
            yield None
            continue
        plan, newest = played.answered.plan, played.blocks[-1]
        block = born_block(engine, plan, newest, frame_us=fleet.settings.step_us)
        origin_us = epoch.blocks[newest.index].wall_offset_us
        yield Born(epoch.camera, epoch.epoch, block, prefix_of(engine, plan), origin_us)


def _questions(verdicts: Sequence[Verdict]) -> list[Question]:
    """Return the questions that were asked at a window in its chain, given the window's verdicts."""
    answered = Verdict.OUTCOME_ANSWERED
    return [
        Question(verdict.watch, verdict.question)
        for verdict in verdicts
        if verdict.outcome == answered and verdict.basis not in {"idle", STRIDES}
    ]


def _folder(fleet: FleetReplay, root: Path) -> ChapterFolder:
    """Open a folder that stores chapters as prefill does, and marks them as rebuilt."""
    settings, engine = fleet.settings, fleet.engine
    if not isinstance(engine, KeepsRows):
        raise EngineError(f"engine {settings.engine} cannot export KV, which chapters need")
    return ChapterFolder(
        root,
        ChapterRules(Keep(seconds=1e12), 1 << 62, settings.memory_chapter_s, settings.memory_chapter_bytes),
        engine.kv_shape,
        settings=MemorySettings(window=settings.window_blocks),
        bias=engine.key_bias,
        about={
            "model": str(settings.model_dir),
            "model_digest": fleet.model_digest,
            "stride_us": settings.stride_us,
            REBUILT: True,
        },
    )


def _times(chapters: Sequence[Chapter], epoch: int) -> np.ndarray:
    """Return the stream times (microseconds) of an epoch's frames in chapters, int64 [frames], ascending."""
    own = [chapter.head for chapter in chapters if int(chapter.head.about["epoch"]) == epoch]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(head.times_us[head.present] for head in own)]))


def _is_present(records: EpochRecords, index: int, times: np.ndarray) -> bool:
    """Whether `times` (ascending) contain a frame of the block with this index."""
    block = records.blocks[index].block
    first = int(np.searchsorted(times, block.start_us))
    return first < len(times) and bool(times[first] < block.end_us)
