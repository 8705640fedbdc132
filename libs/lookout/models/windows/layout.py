"""The prompt layout of a checkpoint: the text around frames and question, and how rows are numbered."""

from __future__ import annotations

from dataclasses import dataclass

from lookout.models.windows.positions import PositionRule
from lookout.models.windows.types import LabelStyle


@dataclass(frozen=True, slots=True)
class Layout:
    """The prompt layout of one checkpoint, as token ids.

    A prompt has the prefix; for each frame its label, `frame_open`, the visual tokens and `frame_close`; then
    `question_head`, the question and `question_tail`. The first token of the answer is `yes` or `no`.
    """

    family: str
    prefix: tuple[int, ...]
    frame_open: tuple[int, ...]
    frame_close: tuple[int, ...]
    question_head: tuple[int, ...]
    question_tail: tuple[int, ...]
    yes: int
    no: int
    positions: PositionRule
    layers: int
    label: LabelStyle | None = None
    stop: tuple[int, ...] = ()
