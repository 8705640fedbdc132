"""From a clip to answered windows, in one process: decode, prune, encode, plan, run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lookout.codec import Basis, DecodeRequest, Limits, SamplingGrid
from lookout.engines import Engine, Question, WindowAnswer, WindowRequest
from lookout.pruning import GatherSettings, MotionGather, PrunePolicy, Sample, prune_block
from lookout.vision import FrameInput, Grid, Tower
from lookout.windows import EncodedFrame, Planner, StrideBlock, WindowPlan

LONGEST_S = 3600.0
"""Seconds of a clip that are decoded."""


@dataclass(frozen=True, slots=True)
class ClipFrames:
    """The sampled frames of a clip.

    Attributes:
        samples: What the prune stage sees of each frame.
        times_us: Each frame's own time in the clip.
        slots: The sampling point each was taken for.
        step_us: Distance of sampling points.
    """

    samples: list[Sample]
    times_us: list[int]
    slots: list[int]
    step_us: int


@dataclass(frozen=True, slots=True)
class Window:
    """One answered window of a clip: its plan, the answer, and the times it covers in seconds."""

    plan: WindowPlan
    answer: WindowAnswer
    start_s: float
    end_s: float


def read_clip(path: Path | str, grid: Grid, fps: float = 2.0, *, vectors: bool = False) -> ClipFrames:
    """Decode and sample a clip at a model's input size.

    Args:
        path: The clip.
        grid: The model's input.
        fps: Sampled frames a second.
        vectors: Whether to read motion vectors; without them, pixels are compared.

    Raises:
        CodecError: The bytes cannot be decoded.
    """
    from lookout.codec import SoftwareDecoder

    step_us = round(1e6 / fps)
    gather = MotionGather(GatherSettings(grid.rows, grid.cols, grid.patch)) if vectors else None
    request = DecodeRequest(
        grid.width,
        grid.height,
        SamplingGrid(step_us),
        gather=gather,
        vectors=vectors,
        limits=Limits(seconds=LONGEST_S),
    )
    decoded = SoftwareDecoder().decode(Path(path).read_bytes(), request)
    samples = []
    for pixels, frame in zip(decoded.pixels, decoded.frames, strict=True):
        info, motion = frame.info, frame.motion
        samples.append(
            Sample(
                pixels,
                Basis.LUMA if motion is None else motion.basis,
                v=None if motion is None else motion.v,
                r=None if motion is None else motion.r,
                intra=info.key,
                corrupt=info.corrupt,
            )
        )
    return ClipFrames(
        samples,
        [frame.stream_us for frame in decoded.frames],
        [frame.slot for frame in decoded.frames],
        step_us,
    )


def stride_blocks(
    stream: str,
    clip: ClipFrames,
    tower: Tower,
    policy: PrunePolicy,
    samples: int,
    *,
    tail: bool = False,
) -> list[StrideBlock]:
    """The pruned and encoded blocks of a clip.

    Args:
        stream: Name of the stream.
        clip: The sampled frames.
        tower: The vision tower.
        policy: What is kept of each frame.
        samples: Frames of a block.
        tail: Whether the frames behind the last whole block make a shorter one; they are left out otherwise.
    """
    out: list[StrideBlock] = []
    carry = None
    count = len(clip.samples)
    for index in range(-(-count // samples) if tail else count // samples):
        rows = range(index * samples, min((index + 1) * samples, count))
        mine = [clip.samples[row] for row in rows]
        masks, carry = prune_block(mine, tower.grid, policy, carry)
        inputs = [FrameInput(np.stack([mine[i].pixels for i in mask.frames]), mask.keep) for mask in masks]
        frames = []
        for mask, encoded in zip(masks, tower.encode(inputs), strict=True):
            times = [clip.times_us[rows[i]] for i in mask.frames]
            frames.append(
                EncodedFrame(
                    times[0],
                    mask.anchor,
                    mask.keep,
                    encoded.tokens,
                    encoded.deepstack,
                    slot_us=clip.slots[rows[mask.frames[0]]] * clip.step_us,
                    label_us=round(sum(times) / len(times)),
                )
            )
        out.append(StrideBlock(stream, index, tuple(frames)))
    return out


def slide(
    engine: Engine,
    planner: Planner,
    streams: Mapping[str, Sequence[StrideBlock]],
    questions: Sequence[Question],
    *,
    batch: int = 8,
    key: bool | None = None,
) -> dict[str, list[Window]]:
    """Answer every window of some streams, in the order of time, several streams at once.

    Args:
        engine: Runs the windows.
        planner: Plans them with `settings.blocks` blocks each; the first ones of a stream are shorter.
        streams: Blocks of each stream.
        questions: Asked at the end of every window.
        batch: Streams in one call of the engine.
        key: Passed to the planner for every window that continues another (False: no key windows).

    Returns:
        The answered windows of each stream.

    Raises:
        EngineError: A window failed.
    """
    out: dict[str, list[Window]] = {stream: [] for stream in streams}
    names = list(streams)
    for first in range(0, len(names), batch):
        group = names[first : first + batch]
        plans: dict[str, WindowPlan | None] = dict.fromkeys(group)
        for last in range(1, max(len(streams[name]) for name in group) + 1):
            requests = []
            for name in group:
                window = streams[name][max(0, last - planner.settings.blocks) : last]
                if last > len(streams[name]) or not any(block.frames for block in window):
                    continue
                plan = planner.plan(window, plans[name], key=key if plans[name] is not None else None)
                plans[name] = plan
                requests.append(WindowRequest(plan, window, questions))
            for request, answer in zip(requests, engine.run(requests), strict=True):
                times = [frame.time_us for block in request.blocks for frame in block.frames]
                ends = (times[0] / 1e6, times[-1] / 1e6)
                out[answer.stream].append(Window(request.plan, answer.unwrap(), *ends))
        for name in group:
            engine.close_stream(name)
    return out
