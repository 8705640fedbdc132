"""Turns motion grids into keep masks for one stride block (CodecSight, section 3.3.2).

A block is decided as a whole, from its sampled frames and the carry-over from the previous block. There is no
clock and no hidden state, so a replay gives the same masks.
"""

from __future__ import annotations

import struct
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from lookout.pruning.gather import DEFAULT_GATHER_METHOD, GatherMethod
from lookout.pruning.luma import luma, patch_difference, patch_luma
from lookout.pruning.noise import NoiseThreshold, learnt, noise_of
from lookout.video.motion import Basis
from lookout.video.motion.grids import GroupedPatches, Mask, complete, pack_mask, spread, unpack_mask

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]

# Reduces the error against dense windows, for 1 % of their FLOPs (measured, see docs/pruning.md).
DEFAULT_ANCHOR_SAMPLES: Final = 8
# Model-input pixels per sample step (measured, see docs/pruning.md).
DEFAULT_TAU: Final = {
    GatherMethod.UNION: 0.75,
    GatherMethod.UNION_CODED: 0.25,
    GatherMethod.SIGNED_SUM: 0.4,
}


class Change(StrEnum):
    """The evidence by which a patch counts as changed."""

    LUMA = "luma"  # its pixels differ from when it was last encoded
    VECTORS = "vectors"  # the codec's motion vectors (the paper); luma if there are none
    VECTORS_LUMA = "vectors-luma"  # the vectors show movement, and luma confirms it


class Anchors(StrEnum):
    """Which frames are encoded whole."""

    STRIDE = "stride"  # the first undamaged frame of every stride block
    GOP = "gop"  # the same, and every sampled I-frame (the paper)


class Accumulation(StrEnum):
    """The reference with which a patch is compared."""

    SINCE_ANCHOR = "since-anchor"  # a patch that moved stays kept until the next anchor (the paper)
    SINCE_ENCODED = "since-encoded"  # a patch is kept if it changed since it was last encoded


class MaskPolicy(Protocol):
    """Decides the keep masks of a stride block, before the vision tower runs.

    It sees samples and the carry-over, but no tokens: a record's masks say which patches the tower encoded,
    and tokens are recomputed from them. A policy that drops tokens after the tower is a `TokenPolicy`.

    The same samples and carry-over must give the same masks, because a replay decides again. `repr` must
    include every parameter, because it is part of the digest of the tokens.
    """

    @property
    def gathers(self) -> GatherMethod | None:
        """How decode gathers motion vectors for the policy; None if it needs none."""
        return None

    @property
    def residual(self) -> bool:
        """Whether decode also measures the residual of motion compensation (`Sample.r`)."""
        return False

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """Return the masks of one stride block, and the carry-over for the next.

        Args:
            samples: The sampled frames of the block, in time order.
            grid: Patches and groups of the model's input.
            carry: Carry-over from the previous block; None at the beginning of a stream.

        Returns:
            One mask for each of `temporal_pairs(len(samples), grid.temporal)`, and the carry-over; None if
                there is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class EncodedGroups:
    """The tower's output for one temporal patch.

    anchor: whether the temporal patch was encoded whole as an anchor; keep: bool [group rows, group cols],
    the groups that were encoded; tokens: float32 [kept, hidden], in row-major order of the kept groups.
    """

    anchor: bool
    keep: Mask
    tokens: F32


class TokenPolicy(MaskPolicy):
    """A policy that also drops tokens after the vision tower, depending on their values.

    It works only in `Pipeline` and in evaluations. A fleet's records say what the tower encoded, not what was
    dropped afterwards, so such policies have no name that `PruningSettings` could select.
    """

    @abstractmethod
    def tokens(self, frames: Sequence[EncodedGroups]) -> list[Mask]:
        """Return which tokens of one stride block windows see.

        Args:
            frames: The block's temporal patches as encoded, in time order.

        Returns:
            For each temporal patch, bool [group rows, group cols]: a subset of the encoded groups.
        """


@dataclass(frozen=True, slots=True)
class PrunePolicy:
    """Keeps the patches that changed. Lookout's rule and the paper's are two sets of its parameters.

    Attributes:
        change: evidence by which a patch counts as changed.
        rule: how decode gathers vectors.
        tau: a patch moved if M = V + alpha * R exceeds this many pixels per sample step. Pixels are those of
            the model's input, or with `union-coded` of the coded picture. None: the default of `rule`, which
            was measured (for `union-coded`: the paper's value).
        alpha: pixels that one grey level of residual adds to M.
        luma_tau: grey levels by which a patch must differ; None: learned from the camera's noise.
        learning: how the learned threshold follows the noise.
        anchors: which frames are encoded whole.
        anchor_samples: maximum number of samples from one anchor to the next of the same block; None: no
            limit.
        accumulation: the reference with which a patch is compared.
        everything: prune nothing.
    """

    change: Change = Change.LUMA
    rule: GatherMethod = DEFAULT_GATHER_METHOD
    tau: float | None = None
    alpha: float = 0.0
    luma_tau: float | None = None
    learning: NoiseThreshold = field(default_factory=NoiseThreshold)
    anchors: Anchors = Anchors.STRIDE
    anchor_samples: int | None = DEFAULT_ANCHOR_SAMPLES
    accumulation: Accumulation = Accumulation.SINCE_ENCODED
    everything: bool = False

    def __post_init__(self) -> None:
        if self.threshold < 0 or self.alpha < 0 or (self.luma_tau or 0.0) < 0:
            raise ValueError(f"thresholds and alpha cannot be negative: {self}")
        if self.anchor_samples is not None and self.anchor_samples < 1:
            raise ValueError(f"anchor_samples={self.anchor_samples} must be at least 1, or None: no limit")

    @property
    def needs_vectors(self) -> bool:
        """Whether decode must export motion vectors for the policy."""
        return self.change is not Change.LUMA and not self.everything

    @property
    def gathers(self) -> GatherMethod | None:
        """How decode gathers motion vectors for the policy; None if it needs none."""
        return self.rule if self.needs_vectors else None

    @property
    def residual(self) -> bool:
        """Whether the residual is added to motion."""
        return self.alpha > 0

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """Return the masks of one stride block, and the carry-over for the next; see `MaskPolicy.masks`.

        The first temporal patch without a damaged frame is the block's anchor: it is encoded whole, whatever
        its frame type. Damaged frames before it rely on the carry-over; without one, they are kept whole but
        are not anchors.

        Raises:
            ValueError: A motion grid does not fit the patch grid.
        """
        return _changed(samples, grid, self, carry)

    def luma_threshold(self, noise: float | None) -> float:
        """Return the luma threshold in grey levels for a camera with this noise; None counts as no noise."""
        return self.learning(noise or 0.0) if self.luma_tau is None else self.luma_tau

    @property
    def threshold(self) -> float:
        """`tau`, or the default of `rule`."""
        return DEFAULT_TAU[self.rule] if self.tau is None else self.tau


@dataclass(frozen=True)
class Sample:
    """One sampled frame, as input of pruning.

    pixels: uint8 [height, width, 3] RGB, the model's input; v, r: float16 [rows, cols] if basis is VECTORS (r
    may be missing); intra: whether it is an I-frame; corrupt: whether it is damaged, so that it is never an
    anchor.
    """

    pixels: U8
    basis: Basis = Basis.NONE
    v: F16 | None = None
    r: F16 | None = None
    intra: bool = False
    corrupt: bool = False

    @cached_property
    def luma(self) -> U8:
        """Luma of the pixels: uint8 [height, width]."""
        return luma(self.pixels)


@dataclass(frozen=True, slots=True)
class TemporalMask:
    """The part of one temporal patch to encode.

    frames: indices into the block's samples (one, or a pair; a lone last frame is repeated); anchor: whether
    the patch is encoded whole as an anchor; keep: bool [group rows, group cols], the groups to encode;
    dynamic: bool [rows, cols], the patches that changed in these frames.
    """

    frames: tuple[int, ...]
    anchor: bool
    keep: Mask
    dynamic: Mask

    @property
    def kept(self) -> int:
        """Number of kept groups, which is the number of tokens."""
        return int(self.keep.sum())


@dataclass(frozen=True, slots=True)
class Carry:
    """The pruning state that the next block takes over from this one. All but the noise is used only for
    frames before the next block's anchor, which comes later if the block's first frames are damaged.

    active: bool [rows, cols], patches kept since the last anchor; content: uint8 [rows, cols], mean luma of
    each patch when it was last encoded; noise: the camera's noise in grey levels (`pruning.noise`); None:
    unknown.
    """

    active: Mask
    content: U8
    noise: float | None = None

    def pack(self) -> bytes:
        """Return bytes for a checkpoint: less than 1 KiB for grids of up to 28 x 28 patches, about 1 byte per
        patch for larger ones."""
        rows, cols = self.active.shape
        body = pack_mask(self.active) + self.content.tobytes()
        noise = float("nan") if self.noise is None else self.noise
        return _HEAD.pack(_VERSION, rows, cols, noise) + zlib.compress(body, 9)

    @classmethod
    def unpack(cls, data: bytes) -> Carry | None:
        """Return the carry-over that `pack` packed; None for no bytes.

        Raises:
            ValueError: The bytes are not a carry-over.
        """
        if not data:
            return None
        try:
            version, rows, cols, noise = _HEAD.unpack_from(data)
            body = zlib.decompress(data[_HEAD.size :])
        except (struct.error, zlib.error) as error:
            raise ValueError(f"the bytes are not a carry-over of pruning: {error}") from error
        bits = (rows * cols + 7) // 8
        if version != _VERSION or len(body) != bits + rows * cols:
            raise ValueError(
                f"a carry-over of version {version} with {len(body)} bytes does not fit {rows}x{cols}"
            )
        active = unpack_mask(body[:bits], rows, cols)
        content = np.frombuffer(body, np.uint8, rows * cols, bits).reshape(rows, cols).copy()
        return cls(active, content, None if np.isnan(noise) else float(noise))


# Version, rows, columns and noise. Raise the version when this layout changes.
_HEAD: Final = struct.Struct("<BHHe")
_VERSION: Final = 2


@dataclass(slots=True)
class _State:
    """State while the temporal patches of a block are processed."""

    active: Mask  # patches kept since the last anchor
    moved: F32  # motion since a patch was last encoded
    canvas: U8 | None = None  # luma of each patch when last encoded; None before this block's anchor
    content: U8 | None = None  # patch means of the previous block, used while there is no canvas
    anchored: bool = field(default=False)
    since: int = 0  # samples since the last anchor, including the anchor
    noise: float | None = None  # the camera's noise in grey levels
    fresh: bool = False  # whether the canvas is the whole previous sample


def prune_block(
    samples: Sequence[Sample], grid: GroupedPatches, policy: MaskPolicy, carry: Carry | None = None
) -> tuple[list[TemporalMask], Carry | None]:
    """Return the policy's keep masks for one stride block and the carry-over for the next block, after
    checking the masks.

    Raises:
        ValueError: The masks do not fit the frames or the grid, or a motion grid does not fit the patch grid.
    """
    masks, next_carry = policy.masks(samples, grid, carry)
    pairs = temporal_pairs(len(samples), grid.temporal)
    decided = [mask.frames for mask in masks]
    if decided != pairs:
        raise ValueError(f"{policy!r} gives masks for frames {decided}, but the block has frames {pairs}")
    shape = (len(grid.row_taps), len(grid.col_taps))
    for mask in masks:
        if mask.keep.shape != shape or mask.keep.dtype != np.bool_:
            raise ValueError(
                f"{policy!r} gives a mask of {mask.keep.dtype} {mask.keep.shape} for frames {mask.frames}: "
                f"it must be bool {shape}"
            )
    return masks, next_carry


def drop_tokens(policy: TokenPolicy, frames: Sequence[EncodedGroups]) -> list[Mask]:
    """Return which tokens of one stride block windows see, according to the policy, after checking its masks.

    Raises:
        ValueError: The masks do not fit what was encoded.
    """
    masks = policy.tokens(frames)
    if len(masks) != len(frames):
        raise ValueError(f"{policy!r} gives {len(masks)} token masks for {len(frames)} temporal patches")
    for mask, frame in zip(masks, frames, strict=True):
        if mask.shape != frame.keep.shape or mask.dtype != np.bool_:
            raise ValueError(
                f"{policy!r} gives a mask of {mask.dtype} {mask.shape}: it must be bool {frame.keep.shape}"
            )
        if (mask & ~frame.keep).any():
            raise ValueError(f"{policy!r} keeps tokens that were not encoded")
    return masks


def _changed(
    samples: Sequence[Sample], grid: GroupedPatches, policy: PrunePolicy, carry: Carry | None
) -> tuple[list[TemporalMask], Carry | None]:
    """Return the masks of `PrunePolicy`, and the carry-over."""
    shape = (grid.rows, grid.cols)
    if carry is not None and carry.active.shape != shape:
        carry = None  # another model input: the carry-over does not apply
    state = _State(
        active=carry.active.copy() if carry else np.zeros(shape, np.bool_),
        moved=np.zeros(shape, np.float32),
        content=carry.content if carry else None,
        noise=carry.noise if carry else None,
    )
    masks = [
        _patch(samples, pair, grid, policy, state) for pair in temporal_pairs(len(samples), grid.temporal)
    ]
    if state.canvas is not None:
        state.content = patch_luma(state.canvas, grid)
    return masks, None if state.content is None else Carry(state.active, state.content, state.noise)


def temporal_pairs(count: int, temporal: int) -> list[tuple[int, ...]]:
    """Return the frame indices of each temporal patch; a lone last frame is repeated."""
    starts = range(0, count, temporal)
    return [tuple(min(i + j, count - 1) for j in range(temporal)) for i in starts]


def motion(sample: Sample, alpha: float) -> F32:
    """Return M = V + alpha * R, float32 [rows, cols]."""
    if sample.v is None:
        raise ValueError("a sample with the basis VECTORS has no motion grid")
    if alpha == 0 or sample.r is None:
        return sample.v.astype(np.float32)
    return sample.v.astype(np.float32) + np.float32(alpha) * sample.r.astype(np.float32)


def _patch(
    samples: Sequence[Sample],
    frames: tuple[int, ...],
    grid: GroupedPatches,
    policy: PrunePolicy,
    state: _State,
) -> TemporalMask:
    """Judge one temporal patch and update the state."""
    members = [samples[i] for i in dict.fromkeys(frames)]
    # Judge even an anchor, which is encoded whole anyway, because every frame updates noise and motion.
    judged = [_dynamic(sample, grid, policy, state) for sample in members]
    # A token covers both frames of a pair, so it is kept if either frame changed.
    dynamic: Mask = np.logical_or.reduce(judged)
    damaged = any(sample.corrupt for sample in members)
    anchor = _due(members, policy, state) and not damaged
    if anchor:
        state.anchored, state.since = True, 0
        state.active[:] = False
        keep = np.ones((len(grid.row_taps), len(grid.col_taps)), np.bool_)
    elif policy.everything or (state.canvas is None and state.content is None):
        keep = np.ones((len(grid.row_taps), len(grid.col_taps)), np.bool_)
        state.active |= dynamic
    elif policy.accumulation is Accumulation.SINCE_ANCHOR:
        state.active |= dynamic
        keep = complete(state.active, grid)
    else:
        state.active |= dynamic
        keep = complete(dynamic, grid)
    state.since += len(members)
    # The later frame of a pair, because later frames are compared with the newest encoded picture.
    _encoded(members[-1], keep, grid, state)
    return TemporalMask(frames, anchor, keep, dynamic)


def _due(members: Sequence[Sample], policy: PrunePolicy, state: _State) -> bool:
    """Whether an anchor is due at this temporal patch. If a frame is damaged, the caller postpones the
    anchor."""
    if not state.anchored or (policy.anchors is Anchors.GOP and any(sample.intra for sample in members)):
        return True
    return policy.anchor_samples is not None and state.since >= policy.anchor_samples


def _dynamic(sample: Sample, grid: GroupedPatches, policy: PrunePolicy, state: _State) -> Mask:
    """Return the patches of one frame that changed since they were last encoded."""
    if policy.change is Change.LUMA or sample.basis is not Basis.VECTORS:
        return _differs(sample, grid, policy, state)
    moved = _moved(sample, grid, policy, state)
    if policy.change is Change.VECTORS or not moved.any():
        return moved
    return moved & _differs(sample, grid, policy, state)


def _moved(sample: Sample, grid: GroupedPatches, policy: PrunePolicy, state: _State) -> Mask:
    """Return the patches that moved according to the vectors."""
    m = motion(sample, policy.alpha)
    if m.shape != (grid.rows, grid.cols):
        raise ValueError(f"a motion grid of {m.shape} does not fit a patch grid of {(grid.rows, grid.cols)}")
    if policy.accumulation is Accumulation.SINCE_ENCODED:
        state.moved += m
        return np.asarray(state.moved > policy.threshold, np.bool_)
    return np.asarray(m > policy.threshold, np.bool_)


def _differs(sample: Sample, grid: GroupedPatches, policy: PrunePolicy, state: _State) -> Mask:
    """Return the patches whose luma has changed since they were last encoded."""
    now = sample.luma
    if state.canvas is not None:
        gap = patch_difference(now, state.canvas, grid)
        if state.fresh and not sample.corrupt:
            state.noise = learnt(state.noise, noise_of(gap))
        return np.asarray(gap > policy.luma_threshold(state.noise), np.bool_)
    if state.content is not None:
        means = np.abs(patch_luma(now, grid).astype(np.int16) - state.content)
        return np.asarray(means > policy.luma_threshold(state.noise), np.bool_)
    return np.ones((grid.rows, grid.cols), np.bool_)


def _encoded(sample: Sample, keep: Mask, grid: GroupedPatches, state: _State) -> None:
    """Record that the kept patches now have this frame's content."""
    fresh = spread(keep, grid)
    state.moved[fresh] = 0
    # Only a difference from the whole previous sample is noise; older patches also changed over time.
    state.fresh = bool(fresh.all()) and not sample.corrupt
    if not fresh.any():
        return
    picture = sample.luma
    if state.canvas is None:
        if fresh.all():
            state.canvas = picture.copy()
        elif state.content is not None:
            state.content = np.where(fresh, patch_luma(picture, grid), state.content)
        return
    area = np.repeat(np.repeat(fresh, grid.patch, axis=0), grid.patch, axis=1)
    rows, cols = area.shape
    state.canvas[:rows, :cols][area] = picture[:rows, :cols][area]
