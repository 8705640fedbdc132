"""Plans windows from blocks: rows, labels and positions, and which rows are reused or computed."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Protocol

import numpy as np

from lookout.models.windows.layout import Layout
from lookout.models.windows.positions import RowLayout
from lookout.models.windows.types import (
    PREFIX,
    VISUAL,
    Departed,
    EncodedFrame,
    LabelStyle,
    Policy,
    PositionRangeError,
    PromptPart,
    RowPolicy,
    RowRange,
    Rows,
    StrideBlock,
    WindowError,
    WindowPlan,
    ranges_of,
    rows_in,
)

WHOLE = (Policy.FULL, Policy.PRUNE_ONLY)
"""Policies that compute every row of every window."""


class StreamSampling(Protocol):
    """How a stream is divided into samples, blocks and windows (`lookout.models.SamplingNumbers`)."""

    @property
    def stride_s(self) -> float: ...

    @property
    def block_samples(self) -> int: ...

    @property
    def window_blocks(self) -> int: ...


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How windows are planned.

    Attributes:
        blocks: Blocks (strides) of a window.
        policy: Which reused rows are recomputed.
        key_every: Strides from one key window (computed in full) to the next; sometimes up to half as many
            more (`longest_chain`).
        compact: For models with 1-D positions: number the kept tokens consecutively, without gaps for dropped
            tokens.
        anchors: For `REFRESH`: how many of the reused anchors are recomputed, oldest first, because the
            oldest is nearest to the evicted rows. None: all.
        refresh_frames: For the other policies: how many rows are recomputed, in whole frames. A whole frame
            has all groups of the grid, and its text. None: as many rows as `REFRESH` would recompute.
        refresh_share: A minimum for `refresh_frames` that grows with the window: this share of the window's
            frames, rounded; 0 to 1. None: no minimum.
        refresh_surplus: For `FRONT`: which blocks are recomputed, with all rows before them, after a burst of
            motion has left the window. The rows of these blocks attended to the burst. A block's surplus is
            the number of tokens that left since the block was last computed, minus the usual number of tokens
            of as many blocks. Anchors do not count in either number. The block is recomputed if its surplus
            is at least this share of all tokens, with anchors, up to the block's end. None: never.
        samples: Frames of a full block, so that labels that count frames are wide enough; 0: the width of the
            label style.
        stride_s: Seconds of a block, so that labels that count seconds are wide enough; 0: the width of the
            label style.
        alone: Ask about every stride in a separate prompt. A window's answer is then the largest of its
            strides' answers.
    """

    blocks: int = 5
    policy: Policy | RowPolicy = Policy.REFRESH
    key_every: int = 30
    compact: bool = False
    anchors: int | None = None
    refresh_frames: int | None = None
    refresh_share: float | None = None
    refresh_surplus: float | None = None
    samples: int = 0
    stride_s: float = 0.0
    alone: bool = False

    def __post_init__(self) -> None:
        if self.anchors is not None and self.anchors < 1:
            raise WindowError(
                f"anchors={self.anchors} must be at least 1; to recompute no anchors, use policy reuse-all"
            )
        if self.refresh_frames is not None and self.refresh_frames < 0:
            raise WindowError(f"refresh_frames={self.refresh_frames} must not be negative")
        if self.refresh_share is not None and not 0 <= self.refresh_share <= 1:
            raise WindowError(f"refresh_share={self.refresh_share} must be between 0 and 1")
        if self.refresh_surplus is not None and self.refresh_surplus <= 0:
            raise WindowError(f"refresh_surplus={self.refresh_surplus} must be positive")
        if self.blocks < 1 or self.key_every < 1:
            raise WindowError(f"blocks={self.blocks} and key_every={self.key_every} must be at least 1")

    @property
    def longest_chain(self) -> int:
        """Maximum number of strides from one key window to the next. It exceeds `key_every`, because a key
        stride is skipped if the last key window was less than half an interval ago (`Planner.is_due`)."""
        return self.key_every + self.key_every // 2

    def sampled(self, sampling: StreamSampling) -> WindowSettings:
        """Return these settings with the blocks, samples and stride of a sampling."""
        return replace(
            self,
            blocks=sampling.window_blocks,
            samples=sampling.block_samples,
            stride_s=sampling.stride_s,
        )


DEFAULT_WINDOWS = WindowSettings(policy=Policy.FRONT, refresh_frames=2, refresh_surplus=0.1)
"""The windows of the preset `default`; `lookout.models.windows.presets` explains these numbers."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the windows of any number of streams. It keeps no state between calls."""

    layout: Layout
    settings: WindowSettings = DEFAULT_WINDOWS

    def plan(
        self,
        blocks: Sequence[StrideBlock],
        previous: WindowPlan | None = None,
        *,
        policy: Policy | RowPolicy | None = None,
        key: bool | None = None,
    ) -> WindowPlan:
        """Return the plan of the window that consists of `blocks`.

        A window that does not continue `previous` is computed in full, and its labels restart.

        Args:
            blocks: Consecutive blocks of one stream, oldest first.
            previous: Plan of the previous window, whose KV the engine has; None: there is none.
            policy: The policy for this window; None: that of the settings.
            key: Whether to compute the window in full; None: if a key window is due (`is_due`).

        Raises:
            WindowError: The blocks do not form a window.
            PositionRangeError: The model has too few positions for the window.
        """
        self._check(blocks)
        active = policy or self.settings.policy
        stream, window = blocks[0].stream, blocks[-1].index
        if previous is not None and not _continues(previous, blocks):
            previous = None
        # A window that continues no other window is a key window, whatever `key` says.
        is_key = previous is None or (self.is_due(previous) if key is None else key)
        base = None if is_key else previous
        # All labels of a chain count from its key window, because labels of reused frames must not change.
        origin = _start_us(blocks) if base is None else base.origin_us
        shown = [
            (block.index, number, frame) for block in blocks for number, frame in enumerate(block.frames)
        ]
        parts = self._parts(shown, base, origin)
        ids, positions, question = self._rows(stream, [frame for _, _, frame in shown], parts)
        from_scratch = base is None or active in WHOLE
        source = np.full(len(ids), -1, dtype=np.int64) if from_scratch else _sources(parts, len(ids))
        plan = WindowPlan(
            stream=stream,
            window=window,
            policy=active,
            key=is_key,
            blocks=tuple(block.index for block in blocks),
            parts=parts,
            token_ids=ids,
            positions=positions,
            source=source,
            compute=(RowRange(0, len(ids)),),
            question_position=question,
            origin_us=origin,
            since_key=0 if base is None else base.since_key + 1,
            digest="",
            parent=None if from_scratch or base is None else base.digest,
        )
        grid = max((frame.keep.size for _, _, frame in shown), default=0)
        if from_scratch or base is None:
            return with_digest(plan)
        return with_digest(self._choose(replace(plan, departed=_departed(plan, base)), base, grid))

    def alone(self) -> Planner:
        """Return a planner for the same windows in which each stride is asked about in a separate prompt (the
        preset `strides`)."""
        settings = replace(
            self.settings,
            policy=Policy.PRUNE_ONLY,
            anchors=None,
            refresh_frames=None,
            refresh_share=None,
            refresh_surplus=None,
            alone=True,
        )
        return replace(self, settings=settings)

    def hold(self, previous: WindowPlan) -> WindowPlan:
        """Return a plan of the same window with no row to compute, for further questions about it."""
        return with_digest(held_window(previous))

    def is_key(self, stream: str, window: int, every: int | None = None) -> bool:
        """Whether a window is on the stream's key strides.

        Args:
            stream: The stream.
            window: Number of the window.
            every: The camera's interval between key strides; None: that of the settings.
        """
        camera = stream.rpartition("/")[0] or stream
        # The phase depends on the camera's name, so that key windows of many cameras are spread over the
        # strides. It is the same in every replica and in every epoch of the camera.
        phase = zlib.crc32(camera.encode())
        return (window + phase) % (every or self.settings.key_every) == 0

    def is_due(self, previous: WindowPlan, every: int | None = None) -> bool:
        """Whether the window after `previous` should be a key window: it is on the stream's key strides, and
        its chain is at least half an interval old. In a younger chain, little KV is stale.

        Args:
            previous: Plan of the previous window.
            every: The camera's interval between key strides; None: that of the settings.
        """
        young = 2 * (previous.since_key + 1) < (every or self.settings.key_every)
        return not young and self.is_key(previous.stream, previous.window + 1, every)

    @property
    def label(self) -> LabelStyle | None:
        """The layout's label style, wide enough for the settings; None if the layout has no labels."""
        return None if self.layout.label is None else _widened(self.settings, self.layout.label)

    def _check(self, blocks: Sequence[StrideBlock]) -> None:
        if not blocks:
            raise WindowError("a window needs at least one block")
        stream = blocks[0].stream
        indices = [block.index for block in blocks]
        if any(block.stream != stream for block in blocks):
            raise WindowError(
                f"a window must have blocks of one stream, not of {sorted({b.stream for b in blocks})}"
            )
        if indices != list(range(indices[0], indices[0] + len(indices))):
            raise WindowError(
                f"{stream}: blocks {indices} are not consecutive: give only the blocks after the gap"
            )
        if len(blocks) > self.settings.blocks:
            raise WindowError(
                f"{stream}: a window has at most {self.settings.blocks} blocks, but {len(blocks)} were given"
            )
        if not any(block.frames for block in blocks):
            raise WindowError(f"{stream}: none of the blocks {indices} has a frame")

    def _parts(
        self, shown: Sequence[tuple[int, int, EncodedFrame]], base: WindowPlan | None, origin: int
    ) -> tuple[PromptPart, ...]:
        style = self.label
        opening = (0 if style is None else style.tokens) + len(self.layout.frame_open)
        closing = len(self.layout.frame_close)
        spans = {} if base is None else {(s.block, s.frame): s for s in base.parts}
        row = len(self.layout.prefix)
        parts = [PromptPart(PREFIX, 0, 0, row, row, row, source=-1 if base is None else 0)]
        label = 0
        for block, number, frame in shown:
            old = spans.get((block, number))
            if style is not None and style.counts != "frames":
                # In tenths of a second, which `LabelStyle` converts to the family's format.
                label = frame.label_tenths(origin)
            else:
                # A reused frame keeps its number, because its KV attended to the label with that number.
                label = label + 1 if old is None else old.label
            visual = row + opening
            end = visual + len(frame.kept)
            source = -1 if old is None else old.start
            part = PromptPart(block, number, row, visual, end, end + closing, label, source, frame.anchor)
            if old is not None and old.stop - old.start != part.stop - part.start:
                raise WindowError(
                    f"frame {number} of block {block} has another number of tokens than in the previous "
                    "window, but blocks must not change: plan a key window"
                )
            parts.append(part)
            row = part.stop
        return tuple(parts)

    def _rows(
        self, stream: str, frames: Sequence[EncodedFrame], parts: tuple[PromptPart, ...]
    ) -> tuple[Rows, Rows, int]:
        layout, rule = self.layout, self.layout.positions
        edges = np.array([part[2:6] for part in parts[1:]], dtype=np.int64).reshape(-1, 4)
        before, counts, after = np.diff(edges, axis=1).T
        rows = RowLayout(len(layout.prefix), before, counts, after)
        positions, question = rule.place(rows, frames, compact=self.settings.compact)
        # The rows of a question follow the window, from this position on.
        if question >= rule.limit:
            raise PositionRangeError(
                f"{stream}: the window reaches position {question}, but the model's last position is "
                f"{rule.limit - 1}: shorten the window, sample fewer frames or use a smaller input size"
            )
        ids = np.full(rows.rows, VISUAL, dtype=np.int64)
        ids[: rows.prefix] = layout.prefix
        style = self.label
        opening = _openings(style, layout.frame_open)
        for part in parts[1:]:
            if part.start < part.visual_start:
                text = opening.get(part.label)
                if text is None:
                    label = () if style is None else style.ids(part.label)
                    text = opening[part.label] = np.array((*label, *layout.frame_open), dtype=np.int64)
                ids[part.start : part.visual_start] = text
            if part.visual_stop < part.stop:
                ids[part.visual_stop : part.stop] = layout.frame_close
        return ids, positions, question

    def _choose(self, plan: WindowPlan, base: WindowPlan, grid: int) -> WindowPlan:
        """Return the plan of a window that continues `base` with the rows to compute. `grid` is the number of
        groups of a whole frame."""
        fresh = np.flatnonzero(plan.source < 0)
        # While a stream's first windows still grow, no reused row attended to evicted rows.
        evicted = any(part.block not in plan.blocks for part in base.parts[1:])
        anchors = [s for s in plan.parts if s.anchor and s.source >= 0][: self.settings.anchors]
        budget = self._budget(plan, anchors, grid) if evicted else 0
        first = plan.parts[0].stop
        old = np.flatnonzero(plan.source[first:] >= 0) + first
        if plan.policy is Policy.FRONT and evicted:
            # The recomputed rows have no gap, because a recomputed row must attend only to correct rows.
            old = old[: max(budget, self._stale(plan))]
            return _settled(replace(plan, compute=_union(old, fresh)), old)
        if plan.policy is Policy.REUSE_ALL or budget == 0:
            return replace(plan, compute=ranges_of(fresh))
        if plan.policy is Policy.REFRESH:
            # The anchors' text is recomputed too, because the KV of labels also attended to evicted rows.
            anchor_rows = rows_in([RowRange(s.start, s.stop) for s in anchors])
            return replace(plan, compute=_union(anchor_rows, fresh))
        assert isinstance(plan.policy, RowPolicy)
        return plan.policy.choose(plan, old, fresh, min(budget, len(old)), self.layout.layers)

    def _stale(self, plan: WindowPlan) -> int:
        """Return the number of reused rows from the front to the end of the last block that is to be
        recomputed because of `refresh_surplus`; 0 if there is none."""
        limit = self.settings.refresh_surplus
        if limit is None:
            return 0
        rows = stale = total = moving = 0
        departed = dict(zip(plan.blocks, plan.departed, strict=True))
        old = [part for part in plan.parts[1:] if part.source >= 0]
        for count, (block, run) in enumerate(groupby(old, lambda part: part.block), 1):
            for part in run:
                tokens = part.visual_stop - part.visual_start
                rows, total = rows + part.stop - part.start, total + tokens
                moving += 0 if part.anchor else tokens
            departure = departed[block]
            if departure.tokens - departure.blocks * moving / count >= limit * total and departure.blocks:
                stale = rows
        return stale

    def _budget(self, plan: WindowPlan, anchors: Sequence[PromptPart], grid: int) -> int:
        """Return the number of reused rows that the policy may recompute."""
        frames, share = self.settings.refresh_frames, self.settings.refresh_share
        if plan.policy is Policy.REFRESH or (frames is None and share is None):
            return sum(part.stop - part.start for part in anchors)
        # Every part except the first, the prefix, is a frame.
        frames = max(frames or 0, round((share or 0.0) * (len(plan.parts) - 1)))
        text = len(self.layout.frame_open) + len(self.layout.frame_close)
        return frames * (grid + text + (0 if self.label is None else self.label.tokens))


def held_window(plan: WindowPlan) -> WindowPlan:
    """Return the plan of the same window after `plan` has run, with no row to compute. The caller must set
    its digest (`with_digest`)."""
    return replace(
        plan,
        source=np.arange(plan.rows, dtype=np.int64),
        compute=(),
        layers=None,
        select=None,
        key=False,
        parent=plan.digest,
    )


def with_digest(plan: WindowPlan) -> WindowPlan:
    """Return the plan with the digest and salt of its content. Call this after any change to a plan."""
    digest = digest_of(plan)
    return replace(plan, digest=digest, salt=f"{plan.stream}:{plan.window}:{digest}")


def reuses_frames(plan: WindowPlan) -> bool:
    """Whether a window reuses any row of the previous window other than the prefix."""
    computed = sum(run.stop - run.start for run in plan.compute)
    return plan.parent is not None and plan.rows - computed > plan.parts[0].stop


def digest_of(plan: WindowPlan) -> str:
    """Return a digest of a plan and, through its parent's digest, of its whole chain. Plans with equal
    digests give equal KV for equal blocks."""
    state = hashlib.blake2b(digest_size=12)
    head = (plan.stream, plan.window, plan.policy.value, plan.key, plan.blocks, plan.parent, plan.select)
    # `departed` and `salt` do not count, because they change no row of the KV.
    state.update(repr((head, plan.compute, plan.layers)).encode())
    for array in (plan.token_ids, plan.positions, plan.source):
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


@lru_cache(maxsize=64)
def _widened(settings: WindowSettings, style: LabelStyle) -> LabelStyle:
    """Return a label style that is wide enough for the largest label of a chain."""
    # The newest frame of a chain has the largest label. Before it come the chain's strides and the blocks of
    # its key window.
    strides = settings.longest_chain + settings.blocks
    largest = strides * (settings.samples if style.counts == "frames" else math.ceil(settings.stride_s))
    if style.counts == "clock":
        largest //= 60
    return replace(style, width=max(style.width, len(str(largest))))


@lru_cache(maxsize=16)
def _openings(style: LabelStyle | None, frame_open: tuple[int, ...]) -> dict[int, Rows]:
    """Return an empty dictionary for the token ids before a frame, by label. The dictionary is a cache: equal
    arguments return the same one. Looking up a label is faster than hashing its style."""
    del style, frame_open
    return {}


def _continues(previous: WindowPlan, blocks: Sequence[StrideBlock]) -> bool:
    """Whether the window of `blocks` may reuse KV of `previous`: it is the next window of the same stream,
    and no block of it has lost its frames since."""
    if previous.stream != blocks[0].stream or previous.window != blocks[-1].index - 1:
        return False
    previous_blocks = {part.block for part in previous.parts[1:]}
    # A block whose tokens were lost since then is now empty. KV of its frames must not be used.
    return not any(block.index in previous_blocks and not block.frames for block in blocks)


def _start_us(blocks: Sequence[StrideBlock]) -> int:
    return next(frame.time_us for block in blocks for frame in block.frames)


def _sources(parts: tuple[PromptPart, ...], rows: int) -> Rows:
    """Return the parent window's row for every row, int64 [rows]; -1 for new rows. Neighbouring parts that
    move equally far are handled together."""
    source = np.full(rows, -1, dtype=np.int64)
    for (reused, shift), run in groupby(parts, lambda s: (s.source >= 0, s.source - s.start)):
        if reused:
            moved = list(run)
            first, last = moved[0].start, moved[-1].stop
            source[first:last] = np.arange(first + shift, last + shift)
    return source


def _departed(plan: WindowPlan, base: WindowPlan) -> tuple[Departed, ...]:
    """Return, for each block of `plan`, what has left the window since the block was last computed in
    full."""
    parts = [part for part in base.parts[1:] if part.block not in plan.blocks]
    blocks = len({part.block for part in parts})
    tokens = sum(part.visual_stop - part.visual_start for part in parts if not part.anchor)
    none = Departed()
    before = dict(zip(base.blocks, base.departed or (none,) * len(base.blocks), strict=True))
    return tuple(
        Departed(before[block].blocks + blocks, before[block].tokens + tokens) if block in before else none
        for block in plan.blocks
    )


def _settled(plan: WindowPlan, rows: Rows) -> WindowPlan:
    """Return `plan` with `departed` reset for the blocks that lie within the recomputed `rows`, because
    nothing has left the window since they were computed."""
    end = int(rows[-1]) + 1 if len(rows) else 0
    later_blocks = {part.block for part in plan.parts[1:] if part.stop > end}
    departed = zip(plan.blocks, plan.departed, strict=True)
    return replace(
        plan,
        departed=tuple(departure if block in later_blocks else Departed() for block, departure in departed),
    )


def _union(left: Rows, right: Rows) -> tuple[RowRange, ...]:
    return ranges_of(np.union1d(left, right))
