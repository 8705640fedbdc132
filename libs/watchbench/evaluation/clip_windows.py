"""Windows of clips: decoded, pruned, encoded and answered as in the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from lookout.errors import LookoutError
from lookout.models import SamplingNumbers
from lookout.models.engines import Engine, Question
from lookout.models.vision import FrameInput, Tower
from lookout.models.windows import Planner, WindowSettings
from lookout.pruning import GatherMethod, MaskPolicy
from lookout.streams import (
    ClipWindow,
    SourceFrame,
    StreamBlock,
    answered_windows,
    segment_frames,
    stream_blocks,
)
from lookout.video.segments import CodecError


class ClipError(LookoutError, ValueError):
    """A clip that cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class ClipStream:
    """The blocks of one stream of a clip, and the second of the clip at which the stream begins."""

    begun_s: float
    blocks: list[StreamBlock]


def encode_clip(
    path: Path, tower: Tower, policies: Sequence[MaskPolicy], sampling: SamplingNumbers
) -> list[list[ClipStream]]:
    """Return the clip's streams under each policy.

    Raises:
        ClipError: The clip cannot be read.
    """
    decoded: dict[GatherMethod | None, list[list[SourceFrame]]] = {}
    for policy in policies:
        if policy.gathers not in decoded:
            frames = segment_frames(path, tower.grid, sampling.step_us, policy, window_us=sampling.window_us)
            try:
                decoded[policy.gathers] = [
                    list(members) for _, members in groupby(frames, lambda f: f.stream)
                ]
            except CodecError as error:
                raise ClipError(f"{path}: {error}") from error
    return [
        [
            ClipStream(
                members[0].begun_us / 1e6,
                list(
                    stream_blocks(
                        f"{path.name}/{number}",
                        [member.frame for member in members],
                        tower,
                        policy,
                        samples=sampling.block_samples,
                        step_us=sampling.step_us,
                        window_blocks=sampling.window_blocks,
                    )
                ),
            )
            for number, members in enumerate(decoded[policy.gathers])
        ]
        for policy in policies
    ]


def answer_streams(
    engine: Engine,
    settings: WindowSettings,
    streams: Sequence[ClipStream],
    questions: Sequence[Question],
    *,
    key: bool | None = None,
) -> list[ClipWindow]:
    """Answer the windows of all streams of a clip; their times are seconds of the clip.

    Args:
        engine: Computes the windows.
        settings: How windows are planned.
        streams: The clip's streams.
        questions: Asked at the end of every window.
        key: False: no key windows after a stream's first window; None: as the settings say.
    """
    planner = Planner(engine.layout, settings)
    begun_s = {stream.blocks[0].block.stream: stream.begun_s for stream in streams}
    blocks = {stream.blocks[0].block.stream: stream.blocks for stream in streams}
    return [
        replace(window, start_s=begun_s[name] + window.start_s, end_s=begun_s[name] + window.end_s)
        for name, windows in answered_windows(engine, planner, blocks, questions, key=key).items()
        for window in windows
    ]


def vision_flops(streams: Sequence[ClipStream], tower: Tower) -> int:
    """Return the FLOPs of the vision tower for the streams; each block is encoded once."""
    grid = tower.grid
    shape = (grid.temporal, grid.height, grid.width, 3)
    encoded = [mask for stream in streams for block in stream.blocks for mask in block.encoded]
    return tower.flops([FrameInput(np.zeros(shape, np.uint8), mask) for mask in encoded])


def prefill_flops(window: ClipWindow) -> int:
    """Return the FLOPs of the language model for a window, without its questions."""
    return sum(count for stage, count in window.answer.cost.flops.items() if stage != "questions")
