"""Measures how much rounding changes p(yes) when the same windows are run in differently sized batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lookout.models.engines import Engine, Question
from lookout.models.windows import Planner, StrideBlock
from lookout.streams import StreamBlock, answered_windows

#: number of streams in the larger batch
TOGETHER: Final = 8


def rerun_spread(
    engine: Engine,
    planner: Planner,
    chains: Sequence[Sequence[StrideBlock]],
    questions: Sequence[Question],
) -> float:
    """Return the largest difference of p(yes) between windows run alone and the same windows run in a batch.

    Each chain slides from its first block to its last without a key window, so that differences accumulate as
    they do in a fleet. Returns 0 without chains or questions.

    Args:
        engine: Computes the windows; it must hold no stream's KV, and holds none afterwards.
        planner: Plans the windows.
        chains: Consecutive blocks of some streams; copies of the chains fill the batch.
        questions: Asked at the end of every window.

    Raises:
        EngineError: A window cannot be computed.
    """
    if not chains or not questions:
        return 0.0
    names = [f"spread-{number}/0" for number in range(TOGETHER)]
    streams = {
        name: [
            StreamBlock.of(replace(block, stream=name), len(block.frames))
            for block in chains[number % len(chains)]
        ]
        for number, name in enumerate(names)
    }
    alone = {name: streams[name] for name in names[: len(chains)]}
    alone_windows = answered_windows(engine, planner, alone, questions, batch=1, key=False)
    batched_windows = answered_windows(engine, planner, streams, questions, batch=TOGETHER, key=False)
    return max(
        abs(a.p_yes - b.p_yes)
        for name in alone
        for mine, theirs in zip(alone_windows[name], batched_windows[name], strict=True)
        for a, b in zip(mine.answer.answers, theirs.answer.answers, strict=True)
    )
