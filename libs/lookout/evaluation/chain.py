"""From a clip to answered windows, in one process: decode, prune, encode, plan, run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lookout.codec import DecodeRequest, Limits, SamplingGrid
from lookout.engines import Engine, Question, WindowAnswer, WindowRequest
from lookout.pruning import Carry, GatherMethod, GatherSettings, MotionGather, PrunePolicy
from lookout.strides import StrideFrame, encode_strides, strides_of
from lookout.vision import Grid, Tower
from lookout.windows import Planner, StrideBlock, WindowPlan

LONGEST_S = 3600.0
"""Seconds of a clip that are decoded."""


@dataclass(frozen=True, slots=True)
class ClipFrames:
    """The sampled frames of a clip.

    Attributes:
        frames: In the order of time.
        step_us: Microseconds between two points of the sampling grid.
    """

    frames: list[StrideFrame]
    step_us: int


@dataclass(frozen=True, slots=True)
class Window:
    """One answered window of a clip: its plan, the answer, and the times it covers in seconds."""

    plan: WindowPlan
    answer: WindowAnswer
    start_s: float
    end_s: float


def read_clip(
    path: Path | str, grid: Grid, fps: float = 2.0, *, vectors: GatherMethod | None = None
) -> ClipFrames:
    """Decode and sample a clip at a model's input size.

    Args:
        path: The clip.
        grid: The model's input.
        fps: Sampled frames a second.
        vectors: How motion vectors are gathered; None: they are not read, and pixels are compared.

    Raises:
        CodecError: The bytes cannot be decoded.
    """
    from lookout.codec import SoftwareDecoder

    step_us = round(1e6 / fps)
    rule = GatherSettings(grid.rows, grid.cols, grid.patch, vectors) if vectors is not None else None
    gather = MotionGather(rule) if rule is not None else None
    request = DecodeRequest(
        grid.width,
        grid.height,
        SamplingGrid(step_us),
        gather=gather,
        vectors=gather is not None,
        limits=Limits(seconds=LONGEST_S),
    )
    decoded = SoftwareDecoder().decode(Path(path).read_bytes(), request)
    frames = [
        StrideFrame.of(frame, pixels) for frame, pixels in zip(decoded.frames, decoded.pixels, strict=True)
    ]
    return ClipFrames(frames, step_us)


def stride_blocks(
    stream: str,
    clip: ClipFrames,
    tower: Tower,
    policy: PrunePolicy,
    samples: int,
    *,
    tail: bool = False,
) -> list[StrideBlock]:
    """The pruned and encoded blocks of a clip; a stride without a frame is an empty block.

    Args:
        stream: Name of the stream.
        clip: The sampled frames.
        tower: The vision tower.
        policy: What is kept of each frame.
        samples: Grid points of a block.
        tail: Whether the frames behind the last whole block make a shorter one; they are left out otherwise.
    """
    out: list[StrideBlock] = []
    carry: Carry | None = None
    for index, members in strides_of(clip.frames, samples):
        if not tail and clip.frames[-1].slot < (index + 1) * samples - 1:
            break
        out += [StrideBlock(stream, empty, ()) for empty in range(len(out), index)]
        found = encode_strides([members], tower, policy, clip.step_us, carry)
        carry = found.carry
        out.append(StrideBlock(stream, index, found.strides[0]))
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
