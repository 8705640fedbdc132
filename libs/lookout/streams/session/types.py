"""Answers and windows of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lookout.models.engines import AttendedFrame, Cost
from lookout.models.windows import StrideBlock
from lookout.streams import PlayedWindow

EVIDENCE = 3
"""Maximum number of frames of a window that are listed as evidence."""


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The answer to a question about a window.

    Attributes:
        question: The question.
        start: Source time in seconds at which the window begins.
        end: Source time in seconds at which the window ends.
        basis: "key" for a window computed in full, "incremental" for one that reused KV of the previous
            window, "full" for one that continues a chain but was computed in full.
        cost: For a standing question, the cost of its window with all standing questions; for a question from
            `ask`, the cost of that question.
        evidence: Source times in seconds of the frames that the answer attended to most, best first. For
            answers in words, and with vLLM: times of the frames that show the newest stride best (anchors,
            then those with the most tokens), in time order.
        p_yes: Probability of yes; None for an answer in words.
        text: The answer in words; None for an answer of yes or no.
        answers: For a structured question, the probability of each allowed answer; else empty.
    """

    question: str
    start: float
    end: float
    basis: str
    cost: Cost
    evidence: tuple[float, ...]
    p_yes: float | None = None
    text: str | None = None
    answers: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """A window that has closed.

    Attributes:
        start: Source time in seconds at which the window begins.
        end: Source time in seconds at which the window ends.
        answers: Answers to the standing questions, in their order; empty if the window is not asked.
        basis: As in `SessionAnswer`; None if the window is not asked.
        tokens_kept: Visual tokens of the window.
        tokens_total: Visual tokens that the window would have without pruning.
        begun: Source time in seconds at which the window's stream begins.
        played: The window's blocks, plan and answer.
        refusal: Why the window is not asked, for example because its newest block has no frames. None if it
            is asked.
        vision_flops: FLOPs of the vision tower for the newest block. Earlier blocks were counted in their own
            windows.
        vision_flops_dense: FLOPs that the vision tower would need for every patch of all blocks of the
            window.
    """

    start: float
    end: float
    answers: tuple[SessionAnswer, ...]
    basis: str | None
    tokens_kept: int
    tokens_total: int
    begun: float = field(repr=False)
    played: PlayedWindow = field(repr=False)
    refusal: str | None = None
    vision_flops: int = field(default=0, repr=False)
    vision_flops_dense: int = field(default=0, repr=False)


def evidence_of(block: StrideBlock, begun: float) -> tuple[float, ...]:
    """Return the source times in seconds, in time order, of the frames that show a block best: anchors, then
    the frames with the most tokens. `begun` is the source time in seconds at which the stream begins."""
    frames = sorted(block.frames, key=lambda frame: (not frame.anchor, -len(frame.kept)))[:EVIDENCE]
    return tuple(sorted(begun + frame.time_us / 1e6 for frame in frames))


def attended(
    blocks: Sequence[StrideBlock], frames: Sequence[AttendedFrame], begun: float
) -> tuple[float, ...]:
    """Return the source times in seconds of the frames to which an answer attended, in the order of `frames`.

    Args:
        blocks: Blocks of the window; frames of other blocks are omitted.
        frames: The frames.
        begun: Source time in seconds at which the stream begins.
    """
    frames_of = {block.index: block.frames for block in blocks}
    known = [frame for frame in frames if frame.block in frames_of]
    return tuple(begun + frames_of[frame.block][frame.frame].time_us / 1e6 for frame in known)
