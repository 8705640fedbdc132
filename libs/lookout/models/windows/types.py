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

    `time_us` is the stream time of its first picture in integer microseconds; `keep` is bool [group_rows,
    group_cols]; `tokens` is [kept, hidden] in row-major order of the kept groups; `deepstack` is [levels,
    kept, hidden] for models with DeepStack, otherwise None; `kept` has the places of the kept groups, int64
    [kept]. The label is not stored here: it counts from the key window, so it belongs to the plan.

    `slot_us` is the sampling point for which the first picture was taken, and `last_us` the time of the last
    picture; both default to `time_us`. Stock processors count positions on the even sampling grid, and print
    the middle between the first and the last time.
    print the middle between the first and last time.
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
        # Computed once here, because every window with this frame reads positions and row numbers from it.
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
        """Return the time in the frame's label, in tenths of a second since `origin_us`: the middle of its
        pictures.

        It is computed and rounded in floating point exactly as in stock processors: for a time halfway
        between two tenths (every other frame at 10 a second), the floating-point error decides the rounding.
        """
        middle = ((self.time_us - origin_us) / 1e6 + (self.last_us - origin_us) / 1e6) / 2
        return round(10 * float(f"{middle:.1f}"))


@dataclass(frozen=True, slots=True, eq=False)
class StrideBlock:
    """The frames of one stride [index*s, (index+1)*s) of one stream; windows consist of whole blocks.
    Immutable.

    `stream` names one epoch of one camera ("gate-3/0"); `index` counts strides of that epoch.
    """

    stream: str
    index: int
    frames: tuple[EncodedFrame, ...]

    @property
    def tokens(self) -> int:
        """Visual tokens kept in the block."""
        return sum(frame.tokens.shape[0] for frame in self.frames)


@dataclass(frozen=True, slots=True)
class RowRange:
    """Consecutive rows [start, stop) of a window."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class Policy(StrEnum):
    """Which rows of an overlapping window are computed again. Each policy only changes the window's plan, so
    policies can be compared on the same engine.

    `FULL` and `PRUNE_ONLY` compute every row of every window, on dense and pruned blocks respectively.
    `REUSE_ALL` computes only the new block, `REFRESH` also the anchors (CodecSight, section 3.4). `FRONT`
    also computes the first rows after the prefix, within a budget of token-layers
    (`WindowSettings.refresh_frames`, or what `REFRESH` would spend), and more of them after a burst
    (`WindowSettings.refresh_surplus`). For a rule of your own, subclass `RowPolicy`.
    """

    FULL = "full"
    PRUNE_ONLY = "prune-only"
    REUSE_ALL = "reuse-all"
    REFRESH = "refresh"
    FRONT = "front"


class RowPolicy(ABC):
    """Chooses which reused rows of a window are recomputed, within the budget that `FRONT` has.

    For `WindowSettings.policy`, as an alternative to `Policy`. Equal arguments must give equal rows, because
    windows are planned again when they are verified.
    """

    value: ClassVar[str]
    """The policy's name in plans and their digests."""

    @abstractmethod
    def choose(self, plan: WindowPlan, old: Rows, fresh: Rows, budget: int, layers: int) -> WindowPlan:
        """Return `plan` with `compute` set, and `layers` or `select` if the rows differ by layer.

        Args:
            plan: The window with its rows and their sources.
            old: The rows that could be reused, after the prefix, int64 [n], ascending.
            fresh: The rows that have no KV yet, int64 [n], ascending.
            budget: How many of `old` to compute, on average over the layers; at least 1.
            layers: Decoder layers of the model.
        """


class PromptPart(NamedTuple):
    """The prefix (`block == PREFIX`) or one frame of the window, as rows [start, stop) in prompt order.

    The visual rows are [visual_start, visual_stop); the rows before them are label and opening tokens, the
    rows after them closing tokens. `label` is the number in the label (frames or tenths of a second since the
    key window); `source` is the parent window's row that became `start`, or -1 for a new frame.
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
    """What has left the window since a block was last computed: the number of blocks with frames, and the
    number of these frames' visual tokens, except anchors."""

    blocks: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows that an engine itself selects: the `rows` reused rows whose K and V at layer `layer` deviate most
    from freshly computed ones (CacheBlend)."""

    rows: int
    layer: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """Everything that an engine needs to bring one stream's KV to one window; plain data, no tensors.

    Rows are numbered in prompt order: the prefix, then the frames of the blocks. A row attends to all rows up
    to itself; positions never define the mask. Questions are not part of the plan: each one follows at
    `question_position`, sees all rows, and is then dropped.

    - `token_ids` int64 [rows]: text ids, `VISUAL` or `NEWLINE`.
    - `positions` int64 [axes, rows]: one axis for 1-D models, (t, h, w) for M-RoPE.
    - `source` int64 [rows]: the parent window's row that has this row's KV, or -1.
    - `compute`: ascending runs of the rows to compute; the other rows are reused from `source`.
    - `layers`: None, or per layer the runs computed there; each layer's rows contain those of the next layer.
    - `select`: None, or rows that the engine adds by KV deviation.
    - `parent`: digest of the plan whose KV this plan continues; None for a window that reuses no KV.
    - `origin_us`: stream time from which labels count (start of the key window, `since_key` windows ago).
    - `departed`: per block of `blocks`, what has left since it was last computed in full; () in windows that
      reuse no KV.
    - `salt`: identifies the stream, window and lineage, so that no other window reuses approximate KV.
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
        """Rows of the window without questions."""
        return len(self.token_ids)

    @property
    def computed(self) -> int:
        """Number of rows computed at the first layer (without those that an engine selects)."""
        return sum(len(run) for run in self.compute)

    def runs(self, layer: int) -> tuple[RowRange, ...]:
        """Return the runs computed at `layer`."""
        return self.compute if self.layers is None else self.layers[layer]


def rows_in(runs: Sequence[RowRange]) -> Rows:
    """Return the rows of ascending runs, int64 [n]."""
    if not runs:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.arange(run.start, run.stop, dtype=np.int64) for run in runs])


def ranges_of(rows: Rows) -> tuple[RowRange, ...]:
    """Return the maximal runs of ascending, distinct rows."""
    return tuple(_runs(rows))


def _runs(rows: Rows) -> Iterator[RowRange]:
    if len(rows) == 0:
        return
    # Without a Python loop over rows, because a window has thousands.
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = rows[np.concatenate(([0], breaks + 1))]
    stops = rows[np.concatenate((breaks, [len(rows) - 1]))] + 1
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield RowRange(start, stop)


@dataclass(frozen=True, slots=True)
class LabelStyle:
    """A frame's label: `head`, a number of fixed width, `tail`. All labels of a style have the same number of
    tokens.

    `counts` is "frames" (numbered from 1: `Frame001: `), "seconds" (tenths of a second, with `point` in
    between: `<0012.5 seconds>`) or "clock" (minutes and whole seconds, with `point` in between: `Frame from
    00:12:`). `digits` has the token ids of 0 to 9; `width` is the number of digits before the point.
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
            raise WindowError(f"label {number} does not fit {self.width} digits: plan key windows more often")
        units = [self.digits[int(digit)] for digit in text[: self.width]]
        fraction = [self.digits[int(digit)] for digit in text[self.width :]]
        return (*self.head, *units, *(self.point if decimals else ()), *fraction, *self.tail)
