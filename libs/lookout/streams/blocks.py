"""Turns sampled frames into stride blocks of kept tokens: prunes, then encodes.

`stream_blocks` does this in one process. In the fleet, prune-encode makes the blocks and prefill reads their
tokens (docs/architecture.md). Both use the functions of this module: `frame_input` returns the tower's input,
`encoded_frame` the form of its output that windows use, and `empty_indices` the empty blocks for a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from lookout.models.vision import FrameInput, Tower
from lookout.models.windows import EncodedFrame, StrideBlock
from lookout.pruning import Carry, EncodedGroups, MaskPolicy, Sample, TokenPolicy, drop_tokens, prune_block
from lookout.streams.window import BlockFacts
from lookout.video.motion import Basis
from lookout.video.segments import SampledFrame


@dataclass(frozen=True, slots=True, eq=False)
class StrideFrame:
    """A sampled frame before its stride block is encoded.

    Attributes:
        sample: The input for pruning.
        time_us: The frame's stream time in microseconds.
        slot: Number of the grid point for which the frame was sampled.
    """

    sample: Sample
    time_us: int
    slot: int

    @classmethod
    def of(cls, frame: SampledFrame, pixels: NDArray[np.uint8]) -> StrideFrame:
        """Return the stride frame of a decoded frame.

        Args:
            frame: The frame's times and motion vectors.
            pixels: The frame at the size of the model's input, RGB, uint8 [height, width, 3].
        """
        info, motion = frame.info, frame.motion
        sample = Sample(
            pixels,
            Basis.LUMA if motion is None else motion.basis,
            v=None if motion is None else motion.v,
            r=None if motion is None else motion.r,
            intra=info.key,
            corrupt=info.corrupt,
        )
        return cls(sample, frame.stream_us, frame.slot)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedStrides:
    """The encoded frames of consecutive strides.

    Attributes:
        strides: The encoded frames of every stride, in stride order.
        carry: Pruning state for the next stride; None if no stride was encoded.
        inputs: The tower's inputs, to count its FLOPs.
    """

    strides: list[tuple[EncodedFrame, ...]]
    carry: Carry | None
    inputs: list[FrameInput]

    @property
    def frames(self) -> list[EncodedFrame]:
        """The frames of all strides, one after the other."""
        return [frame for stride in self.strides for frame in stride]


@dataclass(frozen=True, slots=True)
class FrameTime:
    """A sampled frame's stream time in microseconds, and the number of its grid point (`slot`)."""

    time_us: int
    slot: int


def frame_input(
    pixels: Sequence[NDArray[np.uint8]], frames: Sequence[int], keep: NDArray[np.bool_]
) -> FrameInput:
    """Return the tower's input for one temporal patch.

    Args:
        pixels: Pixels of all frames of the block, each uint8 [height, width, 3].
        frames: Indices in `pixels` of the patch's frames.
        keep: The groups to encode, bool [group_rows, group_cols].
    """
    return FrameInput(np.stack([pixels[number] for number in frames]), keep)


def encoded_frame(
    shown: Sequence[FrameTime],
    anchor: bool,
    keep: NDArray[np.bool_],
    tokens: torch.Tensor,
    deepstack: torch.Tensor | None,
    *,
    step_us: int,
) -> EncodedFrame:
    """Return a temporal patch in the form that windows use.

    The patch's time is that of its first frame. Its label shows the mean time of its first and last frame.

    Args:
        shown: The patch's frames, in time order.
        anchor: Whether the patch is encoded whole, as the reference for later frames.
        keep: The groups that have a token, bool [group_rows, group_cols].
        tokens: The groups' tokens in row-major order, [kept, hidden].
        deepstack: The tokens' DeepStack features, [levels, kept, hidden]; None if the family has none.
        step_us: Microseconds between two points of the sampling grid.
    """
    return EncodedFrame(
        time_us=shown[0].time_us,
        anchor=anchor,
        keep=keep,
        tokens=tokens,
        deepstack=deepstack,
        slot_us=shown[0].slot * step_us,
        last_us=shown[-1].time_us,
    )


def empty_indices(begin: int, end: int, window_blocks: int) -> range:
    """Return the indices of the empty blocks that stand for a hole in [begin, end).

    There are at most `window_blocks` of them, because more empty blocks would not change any outcome.
    """
    return range(begin, min(end, begin + window_blocks))


def strides_of(frames: Iterable[StrideFrame], samples: int) -> Iterator[tuple[int, list[StrideFrame]]]:
    """Cut the frames of one stream into strides on the sampling grid.

    Args:
        frames: In time order.
        samples: Grid points of a stride.

    Yields:
        The index and the frames of every stride that has a frame.
    """
    for index, members in groupby(frames, lambda frame: frame.slot // samples):
        yield index, list(members)


def encode_strides(
    strides: Sequence[Sequence[StrideFrame]],
    tower: Tower,
    policy: MaskPolicy,
    step_us: int,
    carry: Carry | None = None,
) -> EncodedStrides:
    """Prune and encode consecutive strides of one stream in one batch.

    Args:
        strides: The frames of every stride.
        tower: The vision tower.
        policy: Decides which patches are kept.
        step_us: Microseconds between two points of the sampling grid.
        carry: State after the previous stride; None at the start of a stream.
    """
    inputs: list[FrameInput] = []
    patches: list[list[tuple[bool, list[FrameTime]]]] = []
    for members in strides:
        masks, carry = prune_block([member.sample for member in members], tower.grid, policy, carry)
        times = [FrameTime(member.time_us, member.slot) for member in members]
        patches.append([(mask.anchor, [times[i] for i in mask.frames]) for mask in masks])
        pixels = [member.sample.pixels for member in members]
        inputs += [frame_input(pixels, mask.frames, mask.keep) for mask in masks]
    # One call for all strides, because a tower packs any number of frames into one sequence.
    encoded = iter(zip(inputs, tower.encode(inputs), strict=True))
    strides_encoded = []
    for stride in patches:
        frames = []
        for anchor, times in stride:
            source, output = next(encoded)
            frames.append(
                encoded_frame(times, anchor, source.keep, output.tokens, output.deepstack, step_us=step_us)
            )
        strides_encoded.append(tuple(_thinned(frames, policy)))
    return EncodedStrides(strides_encoded, carry, inputs)


def _thinned(frames: Sequence[EncodedFrame], policy: MaskPolicy) -> Sequence[EncodedFrame]:
    """Return the frames without the tokens that a `TokenPolicy` drops after the tower; under another policy,
    return the frames unchanged."""
    if not isinstance(policy, TokenPolicy):
        return frames
    groups = [EncodedGroups(frame.anchor, frame.keep, frame.tokens.float().cpu().numpy()) for frame in frames]
    thinned = []
    for frame, keep in zip(frames, drop_tokens(policy, groups), strict=True):
        # Tokens are in row-major order of the encoded groups, so only those groups of the new mask are read.
        remaining = torch.from_numpy(np.flatnonzero(keep[frame.keep])).to(frame.tokens.device)
        deepstack = None if frame.deepstack is None else frame.deepstack.index_select(1, remaining)
        thinned.append(
            replace(frame, keep=keep, tokens=frame.tokens.index_select(0, remaining), deepstack=deepstack)
        )
    return thinned


@dataclass(frozen=True, slots=True, eq=False)
class StreamBlock:
    """A stride block, and the facts that decide whether windows with this block are asked.

    Attributes:
        block: The block.
        facts: The facts.
        encoded: For each frame, the groups that the tower encoded, bool [group_rows, group_cols]; empty if
            unknown. The mask in `block` has fewer groups if tokens were dropped after the tower.
    """

    block: StrideBlock
    facts: BlockFacts
    encoded: tuple[NDArray[np.bool_], ...] = ()

    @property
    def seen(self) -> StrideBlock:
        """The block as windows see it: without frames if the block is not usable."""
        return self.block if self.facts.usable else replace(self.block, frames=())

    @property
    def masks(self) -> tuple[NDArray[np.bool_], ...]:
        """The groups that the tower encoded; if they are unknown, the groups that have tokens."""
        return self.encoded or tuple(frame.keep for frame in self.block.frames)

    @classmethod
    def of(cls, block: StrideBlock, samples: int) -> StreamBlock:
        """Wrap an encoded block whose frames are all undamaged."""
        frames = len(block.frames)
        # All frames of a block have one input size, so there is at most one grid.
        grids = {(frame.keep.shape[0], frame.keep.shape[1]) for frame in block.frames}
        return cls(block, BlockFacts(block.index, samples, frames, grid=next(iter(grids), None)))


def stream_blocks(
    stream: str,
    frames: Iterable[StrideFrame],
    tower: Tower,
    policy: MaskPolicy,
    *,
    samples: int,
    step_us: int,
    window_blocks: int,
) -> Iterator[StreamBlock]:
    """Yield the pruned and encoded blocks of one stream, each as soon as its stride ends. A stride without
    frames gives an empty block.

    Args:
        stream: The stream's name.
        frames: The stream's sampled frames, in time order.
        tower: The vision tower.
        policy: Decides what is kept of each frame.
        samples: Grid points of a block.
        step_us: Microseconds between two points of the grid.
        window_blocks: Blocks of a window; also the maximum number of empty blocks for one hole.
    """
    maker = BlockMaker(stream, tower, policy, samples=samples, step_us=step_us, window_blocks=window_blocks)
    for frame in frames:
        yield from maker.add(frame)
    yield from maker.end()


@dataclass(slots=True, eq=False)
class BlockMaker:
    """Makes the blocks of one stream as its frames arrive; see `stream_blocks`. A copy (`copy.copy`)
    continues independently."""

    stream: str
    tower: Tower
    policy: MaskPolicy
    _: KW_ONLY
    samples: int
    step_us: int
    window_blocks: int
    _carry: Carry | None = None
    _next_index: int = 0
    _pending: tuple[StrideFrame, ...] = ()

    def add(self, frame: StrideFrame) -> list[StreamBlock]:
        """Add the next frame and return the blocks that end before it."""
        ends = self._pending and frame.slot // self.samples != self._pending[0].slot // self.samples
        blocks = self.end() if ends else []
        self._pending = (*self._pending, frame)
        return blocks

    def end(self) -> list[StreamBlock]:
        """Close the block of the pending frames. Return the empty blocks of a hole before it, then the block;
        an empty list if no frame is pending."""
        members, self._pending = self._pending, ()
        if not members:
            return []
        index, samples = members[0].slot // self.samples, self.samples
        # A hole's empty blocks come before the block after the hole, so that windows close in time order.
        blocks = [
            StreamBlock(StrideBlock(self.stream, hole, ()), BlockFacts(hole, samples, 0))
            for hole in empty_indices(self._next_index, index, self.window_blocks)
        ]
        # Strides are encoded one at a time, because a live window must not wait for the next block. A batch
        # would be faster.
        encoded = encode_strides([members], self.tower, self.policy, self.step_us, self._carry)
        self._next_index, self._carry = index + 1, encoded.carry
        facts = BlockFacts(
            index,
            samples,
            len(members),
            sum(frame.sample.corrupt for frame in members),
            (self.tower.grid.group_rows, self.tower.grid.group_cols),
        )
        masks = tuple(frame.keep for frame in encoded.inputs)
        return [*blocks, StreamBlock(StrideBlock(self.stream, index, encoded.strides[0]), facts, masks)]
