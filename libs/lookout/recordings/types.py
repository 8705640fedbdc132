"""Plain data of a recording's prefill: settings, and the plan of one group of frames."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lookout.errors import LookoutError
from lookout.values import check_finite, check_whole

if TYPE_CHECKING:  # they import torch, which settings do not need
    from lookout.models.windows import PromptPart
    from lookout.models.windows.types import Rows


class RecordingError(LookoutError, ValueError):
    """The frames, settings or request cannot be planned."""


class Score(StrEnum):
    """Which KV entries of a group are kept (QuickVideo section 3.2): those with the highest score.

    `KEY_NORM`: small key norm, the paper's default. `VALUE_NORM`: large value norm. `ATTENTION`: dot product
    with the mean query of the questions. For comparison at equal cost: `LARGE_KEY_NORM`: the opposite of the
    paper's default. `RANDOM`: random rows from a seed. `UNIFORM`: evenly spaced rows. `FIRST`: the group's
    first rows.
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
        group_frames: Encoded frames per group; activations grow with this number, KV does not.
        rho: Share of each group's entries that is kept, per layer and KV head.
        score: Which entries are kept.
        keep_text: Whether to keep labels and the tokens around frames, so that only visual rows compete.
        compact: Whether to number the kept tokens of a 1-D model consecutively instead of on the full grid.
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
        """Return how many of `rows` competing rows are kept."""
        # In floating point, 0.07 * 100 is slightly above 7, which must not be rounded up to 8.
        return min(rows, math.ceil(self.rho * rows - 1e-9))


@dataclass(frozen=True, slots=True, eq=False)
class GroupPlan:
    """One group of a recording, as an engine prefills it: plain data, no tensors.

    Rows are numbered in prompt order from the group's first row; the first group begins with the prefix. A
    row attends to the kept entries of all earlier groups and to the group's rows up to itself.

    Attributes:
        recording: The recording's name.
        group: Number of the group, from 0.
        first_frame: Number of the group's first frame among all shown frames.
        parts: Prefix (first group only) and frames.
        token_ids: int64 [rows]: text ids, `VISUAL` or `NEWLINE`.
        positions: int64 [axes, rows].
        competing: int64: the rows of which `keep` are kept per layer and KV head. All other rows are kept.
        keep: How many of the `competing` rows are kept.
        question_position: Position of the first row after the group.
        origin_us: Sampling time of the recording's first frame.
        before: Number of rows in the groups before this one.
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
        """Number of entries that are kept, per layer and KV head."""
        return self.rows - len(self.competing) + self.keep

    @property
    def frames(self) -> int:
        """Number of frames in the group."""
        return sum(part.block >= 0 for part in self.parts)
