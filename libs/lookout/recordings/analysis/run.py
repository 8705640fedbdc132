"""Computes some parts of a recording: groups decoded frames, prefills the groups, and asks the questions at
the end of each part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lookout.models.engines import Question
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.prefill import GroupPrefill
from lookout.models.vision import Tower
from lookout.pruning import Carry, Sample
from lookout.recordings import GroupPlanner
from lookout.recordings.analysis.results import Part, PartResult, Progress, part_answer
from lookout.recordings.analysis.settings import AnalysisSettings
from lookout.streams import EncodedStrides, StrideFrame, encode_strides
from lookout.video.files import FileFrame, Gap, Sampling
from lookout.video.motion import Basis


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: vision tower and engine."""

    tower: Tower
    engine: TransformersEngine


@dataclass(slots=True, eq=False)
class Group:
    """Decoded frames that are prefilled together. `ends`: whether this is the last group of its part."""

    part: Part
    frames: list[FileFrame]
    ends: bool


@dataclass(slots=True, eq=False)
class _OpenPart:
    """The part that is being prefilled."""

    part: Part
    prefill: GroupPrefill
    carry: Carry | None = None
    frames: int = 0
    damaged: int = 0
    tokens: int = 0
    tokens_total: int = 0
    vision_flops: int = 0
    prefill_flops: int = 0


class PartsRun:
    """The state of one run, which turns decoded frames into groups, and groups into results of parts.

    Args:
        model: Tower and engine.
        planner: Plans the groups of a part.
        questions: The questions to ask at the end of every part.
        settings: How to analyse the recording.
        parts: The parts to answer, in order.
        gaps: Returns the times of a part that could not be decoded; called after the part's samples are read.
        on_part: Called with every part's result as soon as the part is answered.
        progress: Called after every group.
    """

    def __init__(  # noqa: PLR0917
        self,
        model: Model,
        planner: GroupPlanner,
        questions: Sequence[Question],
        settings: AnalysisSettings,
        parts: Sequence[Part],
        gaps: Callable[[Part], tuple[Gap, ...]],
        on_part: Callable[[PartResult], None] | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.model, self.questions, self.settings, self.parts = model, questions, settings, parts
        self.results: list[PartResult] = []
        self.answer_s = 0.0
        self._gaps, self._on_part, self._progress = gaps, on_part, progress
        self._open: _OpenPart | None = None
        self._decoded = self._prefilled = 0
        self._samples = sum(part.stop - part.first for part in parts)
        self._planner = planner

    def groups(self, sampling: Sampling) -> Iterator[Group]:
        """Yield groups of decoded frames. The last group of every part is marked (`Group.ends`); it is empty
        if no frame of the part could be decoded."""
        size = self.settings.prefill.group_frames * self.model.tower.grid.temporal
        frames = iter(sampling)
        buffer: list[FileFrame] = []
        next_frame = next(frames, None)
        position = 0
        for part in self.parts:
            stop = position + part.stop - part.first
            while next_frame is not None and next_frame.position < stop:
                buffer.append(next_frame)
                self._decoded += 1
                next_frame = next(frames, None)
                continues = next_frame is not None and next_frame.position < stop
                if len(buffer) == size and continues:
                    yield Group(part, buffer, ends=False)
                    buffer = []
            yield Group(part, buffer, ends=True)
            buffer, position = [], stop

    def take(self, group: Group) -> None:
        """Encode and prefill a group. If it is the last of its part, ask the questions."""
        if group.frames:
            self._add(group)
        self._prefilled += len(group.frames)
        if group.ends:
            self._finish(group.part)
        if self._progress is not None:
            self._progress(
                Progress(self._decoded, self._prefilled, len(self.results), self._samples, len(self.parts))
            )

    def _add(self, group: Group) -> None:
        tokens = self.model.tower.grid.tokens
        if self._open is None:
            count = group.part.stop - group.part.first
            prefill = GroupPrefill(
                self.model.engine,
                self.settings.prefill,
                questions=self.questions,
                expected_rows=self._planner.rows(-(-count // self.model.tower.grid.temporal), tokens),
            )
            self._open = _OpenPart(group.part, prefill)
        state = self._open
        encoded = encode_frames(self.model.tower, group.frames, self.settings, state.carry)
        frames = encoded.frames
        plan = self._planner.plan(str(group.part.number), frames, state.prefill.last)
        cost = state.prefill.add(plan, frames)
        state.carry = encoded.carry
        state.frames += len(group.frames)
        state.damaged += sum(frame.corrupt for frame in group.frames)
        state.tokens += sum(len(frame.kept) for frame in frames)
        state.tokens_total += tokens * len(frames)
        state.vision_flops += self.model.tower.flops(encoded.inputs)
        state.prefill_flops += cost.flops

    def _finish(self, part: Part) -> None:
        state, self._open = self._open, None
        if state is None:  # none of the part's frames could be decoded
            self._deliver(PartResult(part, 0, (), gaps=self._gaps(part)))
            return
        begun = time.perf_counter()
        answers, flops = state.prefill.ask(self.questions, evidence=self.settings.evidence)
        self.answer_s += time.perf_counter() - begun
        last = state.prefill.last
        assert last is not None
        self._deliver(
            PartResult(
                part=part,
                frames=state.frames,
                answers=tuple(map(part_answer, self.questions, answers)),
                rows=last.before + last.rows,
                kept=state.prefill.kv.rows,
                kv_bytes=state.prefill.kv.kv_bytes,
                flops={"vision": state.vision_flops, "prefill": state.prefill_flops, "questions": flops},
                tokens=state.tokens,
                tokens_total=state.tokens_total,
                damaged=state.damaged,
                gaps=self._gaps(part),
            )
        )

    def _deliver(self, result: PartResult) -> None:
        self.results.append(result)
        if self._on_part is not None:
            self._on_part(result)


def encode_frames(
    tower: Tower, frames: Sequence[FileFrame], settings: AnalysisSettings, carry: Carry | None = None
) -> EncodedStrides:
    """Prune and encode frames of a file, one stride after the other.

    Args:
        tower: The vision tower.
        frames: The frames, in time order.
        settings: Has the length of a stride (`stride_frames`) and the pruning policy (`masks`).
        carry: Pruning state after the previous frames; None: a part begins.
    """
    stride_frames = [
        StrideFrame(
            Sample(frame.pixels, Basis.LUMA, intra=frame.picture.intra, corrupt=frame.corrupt),
            frame.time_us,
            frame.slot,
        )
        for frame in frames
    ]
    size = settings.stride_frames
    strides = [stride_frames[begin : begin + size] for begin in range(0, len(stride_frames), size)]
    return encode_strides(strides, tower, settings.masks, max(1, round(1e6 / settings.fps)), carry)
