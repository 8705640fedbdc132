"""Plain data of windows: stride blocks, parts of the prompt, and the plan that an engine executes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookout.errors import LookoutError

if TYPE_CHECKING:
    import torch

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

VISUAL = -1
"""In `WindowPlan.token_ids`: the row is a visual token, and its embedding comes from a block."""
NEWLINE = -2
"""In any list of token ids: the model's learned `image_newline` embedding, if it has one."""
PREFIX = -1
"""`PromptPart.block` of the system prefix."""


class WindowError(LookoutError, ValueError):
    """No window can be planned from these blocks, layout or settings."""


class PositionRangeError(WindowError):
    """The window needs positions beyond the model's range."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedFrame:
    """One encoded frame (temporal patch) of a block; immutable.

    The frame's label is part of the window's plan, because labels count from the key window.

    Attributes:
        time_us: Stream time of the frame's first picture in microseconds.
        anchor: Whether the frame was encoded whole, as the reference for later frames.
        keep: The groups that have a token, bool [group_rows, group_cols].
        tokens: The tokens in row-major order of the kept groups, [kept, hidden].
        deepstack: The tokens' DeepStack features, [levels, kept, hidden]; None if the model has none.
        slot_us: The sampling point of the first picture in microseconds, by which positions count; by default
            `time_us`.
        last_us: Stream time of the last picture in microseconds; by default `time_us`. A label shows the
            middle between `time_us` and `last_us`.
        kept: Indices of the kept groups in row-major order, int64 [kept].
    """

    time_us: int
    anchor: bool
    keep: Mask
    tokens: torch.Tensor
    deepstack: torch.Tensor | None = None
    slot_us: int = -1
    last_us: int = -1
    kept: Rows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("slot_us", "last_us"):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, self.time_us)
        # Computed once, because every window with this frame needs it for positions and row numbers.
        object.__setattr__(self, "kept", np.flatnonzero(self.keep))
        count = len(self.kept)
        if self.keep.ndim != 2 or self.tokens.ndim != 2 or self.tokens.shape[0] != count:
            raise WindowError(
                f"frame at {self.time_us} us: a keep mask of shape {self.keep.shape} for {count} kept groups "
                f"does not fit tokens of shape {tuple(self.tokens.shape)}"
            )
        if self.deepstack is not None and tuple(self.deepstack.shape[1:]) != tuple(self.tokens.shape):
            raise WindowError(
                f"frame at {self.time_us} us: deepstack of shape {tuple(self.deepstack.shape)} does not fit "
                f"tokens of shape {tuple(self.tokens.shape)}; expected [levels, kept, hidden]"
            )

    def label_tenths(self, origin_us: int) -> int:
        """Return the time in the frame's label in tenths of a second since `origin_us`: the middle between
        its first and its last picture.

        The result equals that of transformers' processors, because it is computed and rounded in floating
        point in the same way. For a time halfway between two tenths, the floating-point error decides the
        rounding.
        """
        middle = ((self.time_us - origin_us) / 1e6 + (self.last_us - origin_us) / 1e6) / 2
        return round(10 * float(f"{middle:.1f}"))


@dataclass(frozen=True, slots=True, eq=False)
class StrideBlock:
    """The frames of one stride of one stream; immutable. Windows consist of whole blocks.

    Attributes:
        stream: Name of one epoch of one camera, such as "gate-3/0".
        index: Number of the stride in its epoch.
        frames: The encoded frames, in time order.
    """

    stream: str
    index: int
    frames: tuple[EncodedFrame, ...]

    @property
    def tokens(self) -> int:
        """Number of visual tokens in the block."""
        return sum(frame.tokens.shape[0] for frame in self.frames)


@dataclass(frozen=True, slots=True)
class RowRange:
    """Consecutive rows [start, stop) of a window."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class Policy(StrEnum):
    """Which reused rows of a window are recomputed. A policy changes only the window's plan, so policies can
    be compared on the same engine.

    `FULL` computes every row, for blocks without pruning. `PRUNE_ONLY` computes every row, for pruned blocks.
    `REUSE_ALL` computes only new frames. `REFRESH` also recomputes anchors (CodecSight, section 3.4). `FRONT`
    also recomputes the first rows after the prefix: as many as `WindowSettings.refresh_frames` allows, or
    more after a burst of motion (`WindowSettings.refresh_surplus`). To add a policy, subclass `RowPolicy`.
    """

    FULL = "full"
    PRUNE_ONLY = "prune-only"
    REUSE_ALL = "reuse-all"
    REFRESH = "refresh"
    FRONT = "front"


class RowPolicy(ABC):
    """Chooses which reused rows of a window are recomputed, within the same budget as `FRONT`.

    A subclass is used as `WindowSettings.policy`, instead of a `Policy`. Equal arguments must give equal
    rows, because windows are planned again when they are verified.
    """

    value: ClassVar[str]
    """The policy's name in plans and their digests."""

    @abstractmethod
    def choose(self, plan: WindowPlan, old: Rows, fresh: Rows, budget: int, layers: int) -> WindowPlan:
        """Return `plan` with `compute` set, and `layers` or `select` if the rows differ by layer.

        Args:
            plan: The window's plan, with its rows and their sources.
            old: The rows after the prefix that could be reused, int64 [n], ascending.
            fresh: The rows that have no KV yet and must be computed, int64 [n], ascending.
            budget: How many of the `old` rows to recompute, on average over the layers; at least 1.
            layers: Number of decoder layers of the model.
        """


class PromptPart(NamedTuple):
    """The rows of the prefix or of one frame of a window.

    Attributes:
        block: Index of the frame's block; `PREFIX` for the prefix.
        frame: Number of the frame in its block.
        start: First row: label and opening tokens.
        visual_start: First visual row.
        visual_stop: First row after the visual rows: closing tokens.
        stop: First row after the part.
        label: Number in the frame's label: frames, or tenths of a second, since the key window.
        source: Row of the parent window whose KV row `start` reuses; -1 for a new frame.
        anchor: Whether the frame is an anchor.
    """

    block: int
    frame: int
    start: int
    visual_start: int
    visual_stop: int
    stop: int
    label: int = 0
    source: int = -1
    anchor: bool = False


class Departed(NamedTuple):
    """What has left the window since a block was last computed.

    Attributes:
        blocks: Number of blocks with frames that have left.
        tokens: Number of visual tokens of these blocks, without anchors.
    """

    blocks: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows that the engine selects while it runs (CacheBlend): the `rows` reused rows whose K and V at layer
    `layer` differ most from newly computed K and V."""

    rows: int
    layer: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """Everything that an engine needs to compute one window of one stream; plain data, no tensors.

    Rows are numbered in prompt order: the prefix, then the frames of the blocks. A row attends to all rows up
    to itself, whatever their positions. Questions are not part of the plan. Each question follows the window
    at `question_position`, attends to all rows, and is then dropped.

    - `token_ids`: for each row, the id of its text token, `VISUAL` or `NEWLINE`; int64 [rows].
    - `positions`: int64 [axes, rows]; one axis for 1-D models, (t, h, w) for M-RoPE.
    - `source`: for each row, the row of the parent window with its KV, or -1; int64 [rows].
    - `compute`: ascending runs of the rows to compute. The KV of all other rows is reused.
    - `layers`: for each layer, the runs to compute there, which include those of the next layer; None: every
      layer computes `compute`.
    - `select`: further rows, which the engine selects; None: no further rows.
    - `parent`: digest of the plan whose KV this plan continues; None for a window that reuses no KV.
    - `origin_us`: stream time in microseconds from which labels count: the start of the chain's key window.
    - `since_key`: number of windows since the chain's key window.
    - `departed`: for each of `blocks`, what has left the window since the block was last computed in full; ()
      in windows that reuse no KV.
    - `salt`: identifies the stream, the window and its chain, so that no other window reuses this window's
      approximate KV.
    """

    stream: str
    window: int
    policy: Policy | RowPolicy
    key: bool
    blocks: tuple[int, ...]
    parts: tuple[PromptPart, ...]
    token_ids: Rows
    positions: Rows
    source: Rows
    compute: tuple[RowRange, ...]
    question_position: int
    origin_us: int
    since_key: int
    digest: str
    parent: str | None = None
    layers: tuple[tuple[RowRange, ...], ...] | None = None
    select: Selection | None = None
    departed: tuple[Departed, ...] = ()
    salt: str = field(default="")

    @property
    def rows(self) -> int:
        """Number of rows of the window, without questions."""
        return len(self.token_ids)

    @property
    def computed(self) -> int:
        """Number of rows to compute at the first layer, without rows that the engine selects."""
        return sum(len(run) for run in self.compute)

    def runs(self, layer: int) -> tuple[RowRange, ...]:
        """Return the runs of rows to compute at a layer."""
        return self.compute if self.layers is None else self.layers[layer]


def rows_in(runs: Sequence[RowRange]) -> Rows:
    """Return the rows of ascending runs, int64 [n]."""
    if not runs:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.arange(run.start, run.stop, dtype=np.int64) for run in runs])


def ranges_of(rows: Rows) -> tuple[RowRange, ...]:
    """Return the longest possible runs of consecutive rows. The rows must be ascending and distinct."""
    return tuple(_runs(rows))


def _runs(rows: Rows) -> Iterator[RowRange]:
    if len(rows) == 0:
        return
    # There is no Python loop over rows, because a window has thousands of rows.
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = rows[np.concatenate(([0], breaks + 1))]
    stops = rows[np.concatenate((breaks, [len(rows) - 1]))] + 1
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield RowRange(start, stop)


@dataclass(frozen=True, slots=True)
class LabelStyle:
    """How a frame's label is written: `head`, a number of fixed width, `tail`. All labels of a style have the
    same number of tokens.

    Attributes:
        counts: "frames": the frame's number from 1 (`Frame001: `). "seconds": seconds and tenths
            (`<0012.5 seconds>`). "clock": minutes and seconds (`Frame from 00:12:`).
        digits: Token ids of the digits 0 to 9.
        width: Number of digits before the point.
        head: Token ids before the number.
        point: Token ids between seconds and tenths, or between minutes and seconds.
        tail: Token ids after the number.
    """

    counts: Literal["frames", "seconds", "clock"]
    digits: tuple[int, ...]
    width: int
    head: tuple[int, ...] = ()
    point: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens of every label."""
        point = len(self.point) + self._after_point
        return len(self.head) + self.width + point + len(self.tail)

    @property
    def _after_point(self) -> int:
        """Number of digits after the point."""
        if not self.point:
            return 0
        return 2 if self.counts == "clock" else 1

    def ids(self, number: int) -> tuple[int, ...]:
        """Return the tokens of the label for a number: the frame's number, or tenths of a second.

        Raises:
            WindowError: The number is too wide for the style.
        """
        decimals = self._after_point
        if self.counts == "clock":
            minutes, seconds = divmod(number // 10, 60)
            text = f"{minutes:0{self.width}d}{seconds:02d}"
        else:
            text = f"{number:0{self.width + decimals}d}"
        if number < 0 or len(text) > self.width + decimals:
            raise WindowError(
                f"label {number} does not fit in {self.width} digits: lower key_every, because labels count "
                "from the key window"
            )
        units = [self.digits[int(digit)] for digit in text[: self.width]]
        fraction = [self.digits[int(digit)] for digit in text[self.width :]]
        return (*self.head, *units, *(self.point if decimals else ()), *fraction, *self.tail)
