"""The whole system in one process, without Kafka: what to read first.

A file becomes segments, segments become sampled frames, frames become stride blocks of kept tokens, blocks
become windows, and every question is asked of every window. The fleet does the same with the same rooms, one
step a service (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from lookout import models
from lookout.codec import DecodeRequest, SamplingGrid, SoftwareDecoder, Tail, cut
from lookout.engines import Engine, Question, WindowRequest, load_engine
from lookout.engines.transformers.recall import Recall, Recollection, ask_folder
from lookout.errors import LookoutError
from lookout.families import load_tower
from lookout.presets import DEFAULT, PresetError, preset_of
from lookout.pruning import Carry, GatherSettings, MotionGather, PrunePolicy
from lookout.strides import StrideFrame, encode_strides
from lookout.windows import Planner, StrideBlock, WindowPlan

__all__ = ["Pipeline", "PipelineError", "Recollection", "Verdict", "ask_folder"]


class PipelineError(LookoutError, ValueError):
    """Settings that do not fit together."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question about one window.

    Attributes:
        time: Seconds from the start of the source to the end of the window.
        start: Seconds from the start of the source to the start of the window.
        question: The question.
        p_yes: Probability of yes, 0 to 1.
        basis: "key" for a window computed in full, "incremental" for one that reused KV of the window before.
        tokens_kept: Visual tokens of the window.
        tokens_total: Visual tokens of the window without pruning.
    """

    time: float
    start: float
    question: str
    p_yes: float
    basis: str
    tokens_kept: int
    tokens_total: int


class Pipeline:
    """Asks questions of video.

    Example:
        >>> for verdict in Pipeline(questions=["Is anyone lying on the ground?"]).watch("clip.mp4"):
        ...     print(verdict.time, verdict.question, verdict.p_yes)
    """

    def __init__(
        self,
        model: str | Path | None = None,
        questions: Sequence[str] = (),
        *,
        fps: float | None = None,
        stride_s: float | None = None,
        window_s: float | None = None,
        policy: PrunePolicy | None = None,
        preset: str = DEFAULT,
        device: str = "cpu",
        memory: str | int | None = None,
        memory_dir: str | Path | None = None,
    ) -> None:
        """Loads the model.

        Args:
            model: Folder of a checkpoint of a family in `lookout.families`; None: the tiny
                model that comes with Lookout.
            questions: Yes/no questions.
            fps: Samples a second; None: as the model's folder says, else 2.
            stride_s: A window slides by so many seconds, a whole number of samples; None: as the model's
                folder says, else 8.
            window_s: A window is so many seconds long, a whole number of strides; None: as
                the model's folder says, else 40.
            policy: Which patches are kept; None: as the preset says.
            preset: Which patches are kept and how windows reuse KV: a name in `lookout.presets.PRESETS`.
            device: Where the model runs: "cpu", "cuda", "cuda:1".
            memory: How much of the past to keep for `ask`: a duration ("2h"), a size ("500MB") or bytes.
            memory_dir: A folder that keeps it on disk; needs `memory`.

        Raises:
            LookoutError: The settings do not fit together, or the model does not load.
        """
        folder = models.find_model(model)
        try:
            self._sampling = models.window_defaults(folder).changed(
                fps=fps, stride_s=stride_s, window_s=window_s
            )
        except models.SamplingError as error:
            raise PipelineError(str(error)) from error
        try:
            chosen = preset_of(preset)
        except PresetError as error:
            raise PipelineError(str(error)) from error
        self._tower = load_tower(folder, device=device)
        self._grid = self._tower.grid
        self._engine: Engine = load_engine(folder, device)
        self._policy = policy or chosen.masks
        self._planner = Planner(self._engine.layout, chosen.windows.sampled(self._sampling))
        self._questions = [Question(text, text) for text in questions]
        if memory_dir is not None and memory is None:
            raise PipelineError("memory_dir needs memory: how much of the past to keep, such as '2h'")
        self._recall = None
        if memory is not None:
            self._recall = Recall(self._engine, memory, self._sampling.window_blocks, memory_dir, str(folder))
        self._source = ""

    def watch(self, source: str | Path) -> Iterator[Verdict]:
        """The verdicts of a video file, window by window, as they are decided.

        Where the clock of the file jumps, a new stream begins: windows never reach across a jump.

        Args:
            source: The file.

        Raises:
            CodecError: The file cannot be read.
        """
        self._source = str(Path(source).resolve())
        for _, blocks in groupby(self._encode(self._frames(Path(source))), lambda block: block.stream):
            yield from self._answer(blocks)

    def ask(self, question: str, **options: Any) -> Iterator[Recollection]:
        """Answers about the past, one for each stream watched so far; needs `memory`.

        Args:
            question: What to ask. A question that begins with a verb such as "is" is one of yes or no.
            options: `since`, `until` (seconds from the start of the source), `words`, `text`, `on_text`.

        Raises:
            LookoutError: Nothing is remembered of that time.
        """
        if self._recall is None:
            raise PipelineError("this pipeline keeps no memory: set it, for example memory='2h'")
        return self._recall.ask(question, **options)

    def close(self) -> None:
        """Frees the model."""
        if self._recall is not None:
            self._recall.close()
        self._engine.close()

    def _frames(self, path: Path) -> Iterator[_Frame]:
        """Decode: cut the file at keyframes as a camera would, sample every segment."""
        grid, policy = self._grid, self._policy
        vectors = GatherSettings(grid.rows, grid.cols, grid.patch, policy.rule)
        request = DecodeRequest(
            grid.width,
            grid.height,
            SamplingGrid(self._sampling.step_us),
            tail=Tail.LEAVE,
            gather=MotionGather(vectors) if policy.needs_vectors else None,
            vectors=policy.needs_vectors,
        )
        number = -1
        for piece in cut(path):
            decoded = SoftwareDecoder().decode(piece.data, request)
            if request.expected is None or not decoded.continued:
                number, began_us = number + 1, piece.start_us
            for frame, pixels in zip(decoded.frames, decoded.pixels, strict=True):
                yield _Frame(f"{path.stem}/{number}", began_us, StrideFrame.of(frame, pixels))
            request = replace(request, expected=decoded.following(), first_slot=decoded.next_slot)

    def _encode(self, frames: Iterable[_Frame]) -> Iterator[_Block]:
        """Prune and encode: stride by stride, only the patches that the policy keeps."""
        carry: Carry | None = None
        stream = ""
        for (name, index), group in groupby(frames, self._stride_of):
            members = list(group)
            carry, stream = (carry if name == stream else None), name
            found = encode_strides(
                [[each.frame for each in members]], self._tower, self._policy, self._sampling.step_us, carry
            )
            carry = found.carry
            yield _Block(name, members[0].began_us, StrideBlock(name, index, found.strides[0]))

    def _stride_of(self, frame: _Frame) -> tuple[str, int]:
        return frame.stream, frame.frame.slot // self._sampling.block_samples

    def _answer(self, blocks: Iterable[_Block]) -> Iterator[Verdict]:
        """Plan and run a window at the end of every block of one stream."""
        window: list[StrideBlock] = []
        plan: WindowPlan | None = None
        for each in blocks:
            block = each.block
            if window and block.index != window[-1].index + 1:
                window = []  # a hole: the window starts anew
            window = [*window, block][-self._planner.settings.blocks :]
            plan = self._planner.plan(window, plan)
            answer = self._engine.run([WindowRequest(plan, window, self._questions)])[0].unwrap()
            if self._recall is not None:
                self._recall.close_block(plan, block, each.began_us, self._source)
            stride_s = self._sampling.stride_us / 1e6
            for said in answer.answers:
                yield Verdict(
                    time=each.began_us / 1e6 + (block.index + 1) * stride_s,
                    start=each.began_us / 1e6 + window[0].index * stride_s,
                    question=said.question,
                    p_yes=said.p_yes,
                    basis="key" if plan.key else "incremental",
                    tokens_kept=sum(one.tokens for one in window),
                    tokens_total=sum(frame.keep.size for one in window for frame in one.frames),
                )
        if plan is not None:
            self._engine.close_stream(plan.stream)


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """A sampled frame, and when its stream began in the source."""

    stream: str
    began_us: int
    frame: StrideFrame


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """A stride block, and when its stream began in the source."""

    stream: str
    began_us: int
    block: StrideBlock
