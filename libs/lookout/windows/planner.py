"""From blocks to window plans: rows, labels, positions, what is reused and what is computed (DESIGN 6)."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from lookout.windows.positions import RowLayout, positions_of
from lookout.windows.types import (
    PREFIX,
    VISUAL,
    LabelStyle,
    Layout,
    Policy,
    PositionRangeError,
    PromptPart,
    RowRange,
    Rows,
    Selection,
    StrideBlock,
    WindowError,
    WindowPlan,
    ranges_of,
    rows_in,
)

WHOLE = (Policy.FULL, Policy.PRUNE_ONLY)
"""Policies that compute every row of every window."""


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """`blocks` strides make a window (w/s); every `key_every` strides a window is computed in full.

    `compact` numbers the kept tokens of a 1-D model consecutively instead of leaving gaps where tokens
    were dropped. `anchors` bounds how many of the remaining anchors `REFRESH` computes again, oldest first
    (None: all): the oldest stands nearest to what was evicted. `seed` draws the rows of `RANDOM_K`.
    """

    blocks: int = 5
    policy: Policy = Policy.REFRESH
    key_every: int = 15
    compact: bool = False
    seed: int = 0
    anchors: int | None = None

    def __post_init__(self) -> None:
        if self.anchors is not None and self.anchors < 1:
            raise WindowError(f"anchors={self.anchors} must be at least 1; reuse-all refreshes none")
        if self.blocks < 1 or self.key_every < 1:
            raise WindowError(f"blocks={self.blocks} and key_every={self.key_every} must be at least 1")


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the windows of any number of streams; holds no state of theirs."""

    layout: Layout
    settings: WindowSettings = WindowSettings()

    def plan(
        self,
        blocks: Sequence[StrideBlock],
        previous: WindowPlan | None = None,
        *,
        policy: Policy | None = None,
        key: bool | None = None,
    ) -> WindowPlan:
        """The plan of the window that closes with the last of `blocks` (consecutive, of one stream).

        `previous` is the plan of the window before, whose KV the engine holds. Without it, after a skipped
        window, and on the stream's own key strides, the window is computed in full and labels restart; `key`
        True or False overrules the stride (the incremental answer of a key stride is its fidelity audit).
        `policy` overrides the settings for this window. Raises `WindowError` for blocks that make
        no window and `PositionRangeError` where the model cannot count so far.
        """
        self._check(blocks)
        chosen = policy or self.settings.policy
        stream, window = blocks[0].stream, blocks[-1].index
        if previous is not None and not _continues(previous, stream, window):
            previous = None
        due = self.is_key(stream, window) if key is None else key
        is_key = due or previous is None
        base = None if is_key else previous
        origin = _start_us(blocks) if base is None else base.origin_us
        parts = self._parts(blocks, base, origin)
        ids, positions, question = self._rows(blocks, parts)
        whole = base is None or chosen in WHOLE
        source = np.full(len(ids), -1, dtype=np.int64) if whole else _sources(parts, len(ids))
        plan = WindowPlan(
            stream=stream,
            window=window,
            policy=chosen,
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
            parent=None if whole or base is None else base.digest,
        )
        return with_digest(plan if whole or base is None else self._choose(plan, base))

    def hold(self, previous: WindowPlan) -> WindowPlan:
        """The same window once more with nothing to compute, for further questions."""
        return with_digest(
            replace(
                previous,
                source=np.arange(previous.rows, dtype=np.int64),
                compute=(),
                layers=None,
                select=None,
                key=False,
                parent=previous.digest,
            )
        )

    def is_key(self, stream: str, window: int) -> bool:
        """Whether the stream's own phase makes `window` a key window; the epoch does not move the phase."""
        camera = stream.rpartition("/")[0] or stream
        phase = zlib.crc32(camera.encode())
        return (window + phase) % self.settings.key_every == 0

    def _check(self, blocks: Sequence[StrideBlock]) -> None:
        if not blocks:
            raise WindowError("a window needs at least one block")
        stream = blocks[0].stream
        indices = [block.index for block in blocks]
        if any(block.stream != stream for block in blocks):
            raise WindowError(
                f"blocks of several streams in one window: {sorted({b.stream for b in blocks})}"
            )
        if indices != list(range(indices[0], indices[0] + len(indices))):
            raise WindowError(f"{stream}: blocks {indices} are not consecutive; a gap closes the window")
        if len(blocks) > self.settings.blocks:
            raise WindowError(f"{stream}: {len(blocks)} blocks, but a window has {self.settings.blocks}")
        if not any(block.frames for block in blocks):
            raise WindowError(f"{stream}: blocks {indices} have no frame; there is nothing to look at")

    def _parts(
        self, blocks: Sequence[StrideBlock], base: WindowPlan | None, origin: int
    ) -> tuple[PromptPart, ...]:
        style = self.layout.label
        wide = len(style.ids(0)) if style is not None else 0
        before, after = wide + len(self.layout.frame_open), len(self.layout.frame_close)
        known = {} if base is None else {(s.block, s.frame): s for s in base.parts}
        row = len(self.layout.prefix)
        out = [PromptPart(PREFIX, 0, 0, row, row, row, source=-1 if base is None else 0)]
        label = 0
        for block in blocks:
            for number, frame in enumerate(block.frames):
                old = known.get((block.index, number))
                if style is not None and style.counts == "seconds":
                    label = round((frame.time_us - origin) / 100_000)
                else:
                    label = label + 1 if old is None else old.label
                start, seen = row + before, frame.tokens.shape[0]
                row = start + seen + after
                out.append(
                    PromptPart(
                        block=block.index,
                        frame=number,
                        start=start - before,
                        visual_start=start,
                        visual_stop=start + seen,
                        stop=row,
                        label=label,
                        source=-1 if old is None else old.start,
                        anchor=frame.anchor,
                    )
                )
                if old is not None and old.stop - old.start != row - (start - before):
                    raise WindowError(
                        f"{block.stream}: frame {number} of block {block.index} changed its tokens since the "
                        "window before; blocks are immutable"
                    )
        return tuple(out)

    def _rows(self, blocks: Sequence[StrideBlock], parts: tuple[PromptPart, ...]) -> tuple[Rows, Rows, int]:
        layout, rule = self.layout, self.layout.positions
        frames = [frame for block in blocks for frame in block.frames]
        opening = [(*self._label(part.label), *layout.frame_open) for part in parts[1:]]
        places = RowLayout.of(frames, len(layout.prefix), len(opening[0]), len(layout.frame_close))
        positions, question = positions_of(rule, self.settings.compact, places, frames)
        if question >= rule.limit:
            raise PositionRangeError(
                f"{blocks[0].stream}: the window reaches position {question}, but the model counts only to "
                f"{rule.limit - 1}: shorten the window, sample fewer frames or use a smaller input"
            )
        ids = np.full(places.rows, VISUAL, dtype=np.int64)
        ids[: places.prefix] = layout.prefix
        ids[places.opening] = opening
        ids[places.closing] = layout.frame_close
        return ids, positions, question

    def _label(self, number: int) -> tuple[int, ...]:
        return () if self.layout.label is None else _label(self.layout.label, number)

    def _choose(self, plan: WindowPlan, base: WindowPlan) -> WindowPlan:
        """The rows to compute of a window that continues `base`."""
        fresh = np.flatnonzero(plan.source < 0)
        evicted = base.blocks[0] != plan.blocks[0]
        held = {block for block in base.blocks if block in plan.blocks}
        anchors = [s for s in plan.parts if s.anchor and s.block in held][: self.settings.anchors]
        if not evicted:
            anchors = []
        budget = sum(s.stop - s.start for s in anchors)
        first = plan.parts[0].stop
        old = np.flatnonzero(plan.source[first:] >= 0) + first
        if plan.policy is Policy.REUSE_ALL or budget == 0:
            return replace(plan, compute=ranges_of(fresh))
        if plan.policy is Policy.REFRESH:
            picked = rows_in([RowRange(s.start, s.stop) for s in anchors])
            return replace(plan, compute=_union(picked, fresh))
        if plan.policy is Policy.RANDOM_K:
            seed = zlib.crc32(f"{self.settings.seed}:{plan.stream}:{plan.window}".encode())
            drawn = np.random.default_rng(seed).choice(old, budget, replace=False)
            return replace(plan, compute=_union(drawn, fresh))
        if plan.policy is Policy.FRONT:
            return replace(plan, compute=_union(old[:budget], fresh))
        if plan.policy is Policy.VLCACHE:
            counts = falling_shares(budget, self.layout.layers, len(old))
            layers = tuple(_union(old[:count], fresh) for count in counts)
            return replace(plan, compute=layers[0], layers=layers)
        rest = max(1, self.layout.layers - 1)
        rows = max(0, min(len(old), (budget * self.layout.layers - len(old)) // rest))
        return replace(plan, compute=_union(old, fresh), select=Selection(rows))


def with_digest(plan: WindowPlan) -> WindowPlan:
    """The plan with the digest and the salt of its content; to be called after any change to a plan."""
    digest = digest_of(plan)
    return replace(plan, digest=digest, salt=f"{plan.stream}:{plan.window}:{digest}")


def falling_shares(budget: int, layers: int, limit: int) -> tuple[int, ...]:
    """Rows per layer that fall linearly from 1.5 x to 0.5 x `budget` and sum to budget * layers (at most
    `limit` each): the layer-wise share of VLCache."""
    if layers == 1:
        return (min(budget, limit),)
    shares = [budget * (1.5 - layer / (layers - 1)) for layer in range(layers)]
    edges = np.rint(np.cumsum(shares)).astype(int)
    counts = np.diff(np.concatenate(([0], edges)))
    return tuple(int(min(count, limit)) for count in np.sort(counts)[::-1])


def digest_of(plan: WindowPlan) -> str:
    """Names a plan and its lineage: equal digests hold equal KV, given equal blocks."""
    state = hashlib.blake2b(digest_size=12)
    head = (plan.stream, plan.window, plan.policy.value, plan.key, plan.blocks, plan.parent, plan.select)
    state.update(repr((head, plan.compute, plan.layers)).encode())
    for array in (plan.token_ids, plan.positions, plan.source):
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


@lru_cache(maxsize=4096)
def _label(style: LabelStyle, number: int) -> tuple[int, ...]:
    return style.ids(number)


def _continues(previous: WindowPlan, stream: str, window: int) -> bool:
    return previous.stream == stream and previous.window == window - 1


def _start_us(blocks: Sequence[StrideBlock]) -> int:
    return next(frame.time_us for block in blocks for frame in block.frames)


def _sources(parts: tuple[PromptPart, ...], rows: int) -> Rows:
    """The parent's row of every row; neighbours that move equally far are one run."""
    source = np.full(rows, -1, dtype=np.int64)
    for (known, shift), run in groupby(parts, lambda s: (s.source >= 0, s.source - s.start)):
        if known:
            moved = list(run)
            first, last = moved[0].start, moved[-1].stop
            source[first:last] = np.arange(first + shift, last + shift)
    return source


def _union(left: Rows, right: Rows) -> tuple[RowRange, ...]:
    return ranges_of(np.union1d(left, right))
