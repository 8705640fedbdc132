"""Turns blocks into window plans: rows, labels, positions, what is reused and what is computed."""

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
        blocks: Strides in a window (w / s).
        policy: Which reused rows are recomputed.
        key_every: Strides from one key window (computed in full) to the next; the distance may be up to half
            as long again (`longest_chain`).
        compact: Number the kept tokens of a 1-D model consecutively, without gaps for dropped tokens.
        anchors: How many of the remaining anchors `REFRESH` recomputes, oldest first (None: all). The oldest
            is nearest to the evicted rows.
        refresh_frames: The budget of the other policies, in rows of whole frames (all groups of the grid and
            the text of one frame). None: as many rows as `REFRESH` would compute.
        refresh_share: A budget that grows with the window: at least this share of its frames (rounded), also
            in rows of whole frames; 0 to 1. None: only `refresh_frames` counts.
        refresh_surplus: For `FRONT` only. When a burst of movement leaves the window, blocks whose rows
            attended to it stay. Such a block is recomputed, with all rows before it, if the number of tokens
            that left since it was last computed, minus the usual number in as many of the blocks that it
            still sees, is at least this share of the tokens that it sees. Anchors count among the tokens that
            it sees, but not among those that left. None: only the budget counts.
        samples: Frames of a full block; widens labels that count frames (0: the style's width).
        stride_s: Seconds of a block; widens labels that count seconds (0: the style's width).
        alone: Ask about every stride in a separate prompt; the answer of a window is the largest of its
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
            raise WindowError(f"anchors={self.anchors} must be at least 1; for none, use reuse-all")
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
        """Maximum strides from one key window to the next: a key stride is skipped if the last key window was
        less than half an interval ago (`Planner.is_due`)."""
        return self.key_every + self.key_every // 2

    def sampled(self, sampling: StreamSampling) -> WindowSettings:
        """Return these settings, adapted to the windows of a sampling."""
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
    """Plans the windows of any number of streams; keeps no state about them."""

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
        """Plan the window that ends with the last of `blocks` (consecutive, of one stream).

        `previous` is the plan of the window before, whose KV the engine has. Without `previous`, after a
        skipped window, and on the stream's key strides (`is_due`), the window is computed in full and labels
        restart. `key` True or False overrides the stride (the incremental answer on a key stride is an audit
        of fidelity). `policy` overrides the settings for this window.

        Raises:
            WindowError: The blocks do not make a window.
            PositionRangeError: The model has too few positions for the window.
        """
        self._check(blocks)
        active = policy or self.settings.policy
        stream, window = blocks[0].stream, blocks[-1].index
        if previous is not None and not _continues(previous, blocks):
            previous = None
        # After `_continues`: a window that continues no other is a key window, whatever `key` says.
        is_key = previous is None or (self.is_due(previous) if key is None else key)
        base = None if is_key else previous
        # Labels of a chain count from its key window, because labels of reused frames must not change.
        origin = _start_us(blocks) if base is None else base.origin_us
        shown = [
            (block.index, number, frame) for block in blocks for number, frame in enumerate(block.frames)
        ]
        parts = self._parts(shown, base, origin)
        ids, positions, question = self._rows(stream, [frame for _, _, frame in shown], parts)
        # A policy that computes every row reuses none of the parent's, although the chain and its labels
        # continue.
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
        """Return the planner that asks each stride of the same windows alone (the preset `strides`)."""
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
        """Plan the same window again with nothing to compute, to ask more questions."""
        return with_digest(held_window(previous))

    def is_key(self, stream: str, window: int, every: int | None = None) -> bool:
        """Whether `window` is a key window according to the stream's phase; a new epoch does not change the
        phase.

        `every` is a camera-specific interval in strides; None: the settings' interval.
        """
        camera = stream.rpartition("/")[0] or stream
        # From the camera's name: key windows of many cameras spread over the strides, and every replica
        # computes the same phase.
        phase = zlib.crc32(camera.encode())
        return (window + phase) % (every or self.settings.key_every) == 0

    def is_due(self, previous: WindowPlan, every: int | None = None) -> bool:
        """Whether the window after `previous` is a key window. It is on the stream's key strides, unless its
        chain is younger than half the interval, because then little of it is stale.

        `every` is a camera-specific interval in strides; None: the settings' interval.
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
            raise WindowError(f"{stream}: blocks {indices} are not consecutive; a gap ends the window")
        if len(blocks) > self.settings.blocks:
            raise WindowError(
                f"{stream}: {len(blocks)} blocks given, but a window has {self.settings.blocks}"
            )
        if not any(block.frames for block in blocks):
            raise WindowError(f"{stream}: blocks {indices} have no frame")

    def _parts(
        self, shown: Sequence[tuple[int, int, EncodedFrame]], base: WindowPlan | None, origin: int
    ) -> tuple[PromptPart, ...]:
        style = self.label
        opening = (0 if style is None else style.tokens) + len(self.layout.frame_open)
        closing = len(self.layout.frame_close)
        spans = {} if base is None else {(s.block, s.frame): s for s in base.parts}
        row = len(self.layout.prefix)
        out = [PromptPart(PREFIX, 0, 0, row, row, row, source=-1 if base is None else 0)]
        label = 0
        for block, number, frame in shown:
            old = spans.get((block, number))
            if style is not None and style.counts != "frames":
                # Tenths of a second, which `LabelStyle` writes as the family does.
                label = frame.label_tenths(origin)
            else:
                # A reused frame keeps its number, because its KV was computed after that label.
                label = label + 1 if old is None else old.label
            visual = row + opening
            end = visual + len(frame.kept)
            source = -1 if old is None else old.start
            part = PromptPart(block, number, row, visual, end, end + closing, label, source, frame.anchor)
            if old is not None and old.stop - old.start != part.stop - part.start:
                raise WindowError(
                    f"frame {number} of block {block} changed its tokens since the previous window, but "
                    "blocks are immutable"
                )
            out.append(part)
            row = part.stop
        return tuple(out)

    def _rows(
        self, stream: str, frames: Sequence[EncodedFrame], parts: tuple[PromptPart, ...]
    ) -> tuple[Rows, Rows, int]:
        layout, rule = self.layout, self.layout.positions
        edges = np.array([part[2:6] for part in parts[1:]], dtype=np.int64).reshape(-1, 4)
        before, counts, after = np.diff(edges, axis=1).T
        rows = RowLayout(len(layout.prefix), before, counts, after)
        positions, question = rule.place(rows, frames, compact=self.settings.compact)
        # The question's rows come after the window, from this position on.
        if question >= rule.limit:
            raise PositionRangeError(
                f"{stream}: the window reaches position {question}, but the model has positions up to "
                f"{rule.limit - 1}: shorten the window, sample fewer frames or use a smaller input"
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
        """Choose the rows to compute in a window that continues `base`; `grid` is the number of groups of a
        frame."""
        fresh = np.flatnonzero(plan.source < 0)
        # While the window still grows, nothing has left it, so no reused row attended to evicted rows.
        evicted = any(part.block not in plan.blocks for part in base.parts[1:])
        anchors = [s for s in plan.parts if s.anchor and s.source >= 0][: self.settings.anchors]
        budget = self._budget(plan, anchors, grid) if evicted else 0
        first = plan.parts[0].stop
        old = np.flatnonzero(plan.source[first:] >= 0) + first
        if plan.policy is Policy.FRONT and evicted:
            # From the front without a gap, because a recomputed row must attend only to correct rows.
            old = old[: max(budget, self._stale(plan))]
            return _settled(replace(plan, compute=_union(old, fresh)), old)
        if plan.policy is Policy.REUSE_ALL or budget == 0:
            return replace(plan, compute=ranges_of(fresh))
        if plan.policy is Policy.REFRESH:
            # Including the anchors' text, because the labels' KV attended to evicted rows too.
            picked = rows_in([RowRange(s.start, s.stop) for s in anchors])
            return replace(plan, compute=_union(picked, fresh))
        assert isinstance(plan.policy, RowPolicy)
        return plan.policy.choose(plan, old, fresh, min(budget, len(old)), self.layout.layers)

    def _stale(self, plan: WindowPlan) -> int:
        """Count the rows from the front to the end of the last block that attended to a burst which has since
        left."""
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
        """Count the rows of `plan` to recompute."""
        frames, share = self.settings.refresh_frames, self.settings.refresh_share
        if plan.policy is Policy.REFRESH or (frames is None and share is None):
            return sum(part.stop - part.start for part in anchors)
        # After the prefix every part is a frame.
        frames = max(frames or 0, round((share or 0.0) * (len(plan.parts) - 1)))
        text = len(self.layout.frame_open) + len(self.layout.frame_close)
        return frames * (grid + text + (0 if self.label is None else self.label.tokens))


def held_window(plan: WindowPlan) -> WindowPlan:
    """Return the plan of the window that is held after `plan` has run. It has nothing to compute and no
    digest."""
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
    """Return the plan with the digest and salt of its content; call this after any change to a plan."""
    digest = digest_of(plan)
    return replace(plan, digest=digest, salt=f"{plan.stream}:{plan.window}:{digest}")


def reuses_frames(plan: WindowPlan) -> bool:
    """Whether a window reuses any row, other than the prefix, of the previous window."""
    computed = sum(run.stop - run.start for run in plan.compute)
    return plan.parent is not None and plan.rows - computed > plan.parts[0].stop


def digest_of(plan: WindowPlan) -> str:
    """Return a digest that identifies a plan and its lineage: plans with equal digests give equal KV for
    equal blocks."""
    state = hashlib.blake2b(digest_size=12)
    head = (plan.stream, plan.window, plan.policy.value, plan.key, plan.blocks, plan.parent, plan.select)
    # `departed` and `salt` are omitted, because they change no row of the KV.
    state.update(repr((head, plan.compute, plan.layers)).encode())
    for array in (plan.token_ids, plan.positions, plan.source):
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


@lru_cache(maxsize=64)
def _widened(settings: WindowSettings, style: LabelStyle) -> LabelStyle:
    """Return `style`, wide enough for the largest label of a chain."""
    # The newest frame of the last window of a chain: the chain's strides, and the blocks of the key window
    # before them.
    strides = settings.longest_chain + settings.blocks
    largest = strides * (settings.samples if style.counts == "frames" else math.ceil(settings.stride_s))
    if style.counts == "clock":
        largest //= 60
    return replace(style, width=max(style.width, len(str(largest))))


@lru_cache(maxsize=16)
def _openings(style: LabelStyle | None, frame_open: tuple[int, ...]) -> dict[int, Rows]:
    """Return a cache of the token ids in front of a frame, by label, because looking up a label costs less
    than hashing its style."""
    del style, frame_open
    return {}


def _continues(previous: WindowPlan, blocks: Sequence[StrideBlock]) -> bool:
    """Whether KV of `previous` may serve the window of `blocks`: this is the next window of the same stream,
    and no block in it has lost its frames since."""
    if previous.stream != blocks[0].stream or previous.window != blocks[-1].index - 1:
        return False
    earlier = {part.block for part in previous.parts[1:]}
    # A block whose tokens were lost since then is now empty; KV of its frames must not be used.
    return not any(block.index in earlier and not block.frames for block in blocks)


def _start_us(blocks: Sequence[StrideBlock]) -> int:
    return next(frame.time_us for block in blocks for frame in block.frames)


def _sources(parts: tuple[PromptPart, ...], rows: int) -> Rows:
    """Return the parent's row for every row; neighbours that move equally far are handled as one run."""
    source = np.full(rows, -1, dtype=np.int64)
    for (reused, shift), run in groupby(parts, lambda s: (s.source >= 0, s.source - s.start)):
        if reused:
            moved = list(run)
            first, last = moved[0].start, moved[-1].stop
            source[first:last] = np.arange(first + shift, last + shift)
    return source


def _departed(plan: WindowPlan, base: WindowPlan) -> tuple[Departed, ...]:
    """Return, per block of `plan`, what has left the window since the block was last computed in full."""
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
    """Return `plan` after the first old `rows` were recomputed: for the blocks among them, nothing has left
    since."""
    end = int(rows[-1]) + 1 if len(rows) else 0
    late = {part.block for part in plan.parts[1:] if part.stop > end}
    departed = zip(plan.blocks, plan.departed, strict=True)
    return replace(
        plan, departed=tuple(departure if block in late else Departed() for block, departure in departed)
    )


def _union(left: Rows, right: Rows) -> tuple[RowRange, ...]:
    return ranges_of(np.union1d(left, right))
