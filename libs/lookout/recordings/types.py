"""Plain data of a recording's prefill: settings, and the plan of one group of frames."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lookout.errors import LookoutError
from lookout.values import check_finite, check_whole

if TYPE_CHECKING:  # these modules import torch, which settings do not need
    from lookout.models.windows import PromptPart
    from lookout.models.windows.types import Rows


class RecordingError(LookoutError, ValueError):
    """The frames, settings or request cannot be planned."""


class Score(StrEnum):
    """The score by which KV entries of a group are kept (QuickVideo section 3.2). The highest scores are
    kept.

    `KEY_NORM`: a small key norm scores high, the paper's default. `VALUE_NORM`: a large value norm scores
        high.
    `ATTENTION`: the dot product with the mean query of the questions. The others serve as comparisons at
    equal cost. `LARGE_KEY_NORM`: a large key norm scores high. `RANDOM`: random rows from a seed. `UNIFORM`:
    evenly spaced rows. `FIRST`: the group's first rows.
    """

    KEY_NORM = "key-norm"
    LARGE_KEY_NORM = "large-key-norm"
    VALUE_NORM = "value-norm"
    ATTENTION = "attention"
    RANDOM = "random"
    UNIFORM = "uniform"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """How a recording is prefilled.

    Attributes:
        group_frames: Encoded frames per group. Memory for activations grows with this number; the KV does
            not.
        rho: Share of each group's KV entries that is kept, per layer and KV head; above 0, at most 1.
        score: The score by which entries are kept.
        keep_text: Whether to keep all labels and frame marks, so that only entries of visual tokens are
            dropped.
        compact: For models with 1-D positions: whether to number the kept tokens consecutively instead of by
            their place in the full grid.
        seed: Seed for the rows of `Score.RANDOM`.
    """

    group_frames: int = 16
    rho: float = 0.5
    score: Score = Score.RANDOM
    keep_text: bool = False
    compact: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("group_frames", self.group_frames, 1, 1_000_000, RecordingError)
        check_whole("seed", self.seed, 0, (1 << 63) - 1, RecordingError)
        if not 0 < check_finite("rho", self.rho, RecordingError) <= 1:
            raise RecordingError(f"rho={self.rho:g} must be above 0 and at most 1")

    def keeps(self, rows: int) -> int:
        """Return how many of `rows` rows that may be dropped are kept."""
        # In floating point, 0.07 * 100 is slightly above 7, and must not be rounded up to 8.
        return min(rows, math.ceil(self.rho * rows - 1e-9))


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """The plan of one group of a recording, by which an engine prefills it.

    Rows are numbered in prompt order from the group's first row. The first group begins with the prefix. A
    row attends to the kept entries of all earlier groups, and to the group's rows up to itself.

    Attributes:
        recording: The recording's name.
        group: Number of the group, from 0.
        first_frame: Number of the group's first frame among all shown frames.
        parts: The prompt's parts: the prefix (first group only) and the frames.
        token_ids: For each row, the id of its text token, `VISUAL` or `NEWLINE`; int64 [rows].
        positions: Positions of the rows, int64 [axes, rows].
        competing: The rows of which only `keep` are kept per layer and KV head, int64. All other rows are
            kept.
        keep: How many of the `competing` rows are kept.
        question_position: Position of the first row after the group.
        origin_us: Sampling time of the recording's first frame, microseconds.
        before: Number of rows in all earlier groups.
    """

    recording: str
    group: int
    first_frame: int
    parts: tuple[PromptPart, ...]
    token_ids: Rows
    positions: Rows
    competing: Rows
    keep: int
    question_position: int
    origin_us: int
    before: int

    @property
    def rows(self) -> int:
        """Number of rows in the group."""
        return len(self.token_ids)

    @property
    def kept(self) -> int:
        """Number of the group's KV entries that are kept, per layer and KV head."""
        return self.rows - len(self.competing) + self.keep

    @property
    def frames(self) -> int:
        """Number of frames in the group."""
        return sum(part.block >= 0 for part in self.parts)
