"""Turns sampled frames into stride blocks of kept tokens: prunes, then encodes.

`stream_blocks` does this in one process. In the fleet, prune-encode does it and prefill reads the tokens
(docs/architecture.md), with the same functions: the tower's input (`frame_input`), the part of its output
that a window uses (`encoded_frame`), and the empty blocks in place of a hole (`empty_indices`).
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
        slot: The point of the sampling grid for which it was chosen.
    """

    sample: Sample
    time_us: int
    slot: int

    @classmethod
    def of(cls, frame: SampledFrame, pixels: NDArray[np.uint8]) -> StrideFrame:
        """Return the stride frame of a decoded frame.

        Args:
            frame: Facts of the frame.
            pixels: uint8 [height, width, 3], RGB, the model's input.
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
    """The result of encoding strides.

    Attributes:
        strides: The encoded frames of every stride, in stride order.
        carry: Pruning state for the next stride.
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
    """A sampled frame's stream time in microseconds and its grid point."""

    time_us: int
    slot: int


def frame_input(
    pixels: Sequence[NDArray[np.uint8]], frames: Sequence[int], keep: NDArray[np.bool_]
) -> FrameInput:
    """Return the tower's input for one temporal patch.

    Args:
        pixels: Pixels of all frames of the block, each uint8 [height, width, 3].
        frames: Indices of the patch's frames.
        keep: bool [group_rows, group_cols].
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
    """Return a temporal patch in the form that windows use: its time is that of its first frame, and its
    label shows the mean time of its first and last frame.

    Args:
        shown: The patch's frames, in time order.
        anchor: Whether the patch is encoded whole, as the reference for later frames.
        keep: bool [group_rows, group_cols].
        tokens: [kept, hidden].
        deepstack: [levels, kept, hidden], if the family has it.
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
    """Return the indices of empty blocks for a hole in [begin, end): at most as many as a window has blocks,
    because more would not change the outcome."""
    return range(begin, min(end, begin + window_blocks))


def strides_of(frames: Iterable[StrideFrame], samples: int) -> Iterator[tuple[int, list[StrideFrame]]]:
    """Cut the frames of one stream into strides on the sampling grid.

    Args:
        frames: In time order.
        samples: Grid points of a stride.

    Yields:
        The index of a stride and its frames; strides without a frame are left out.
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
    """Prune and encode consecutive strides of one stream, in one batch of the tower.

    Args:
        strides: The frames of every stride.
        tower: The vision tower.
        policy: Decides which patches are kept.
        step_us: Microseconds between two points of the sampling grid.
        carry: State after the previous stride; None at the start of a stream.
    """
    inputs: list[FrameInput] = []
    pictures: list[list[tuple[bool, list[FrameTime]]]] = []
    for members in strides:
        masks, carry = prune_block([member.sample for member in members], tower.grid, policy, carry)
        times = [FrameTime(member.time_us, member.slot) for member in members]
        pictures.append([(mask.anchor, [times[i] for i in mask.frames]) for mask in masks])
        pixels = [member.sample.pixels for member in members]
        inputs += [frame_input(pixels, mask.frames, mask.keep) for mask in masks]
    # One call for all strides, because a tower packs any number of frames into one sequence.
    encoded = iter(zip(inputs, tower.encode(inputs), strict=True))
    strides_encoded = []
    for stride in pictures:
        frames = []
        for anchor, times in stride:
            source, output = next(encoded)
            frames.append(
                encoded_frame(times, anchor, source.keep, output.tokens, output.deepstack, step_us=step_us)
            )
        strides_encoded.append(tuple(_thinned(frames, policy)))
    return EncodedStrides(strides_encoded, carry, inputs)


def _thinned(frames: Sequence[EncodedFrame], policy: MaskPolicy) -> Sequence[EncodedFrame]:
    """Apply a `TokenPolicy`: drop tokens after the tower."""
    if not isinstance(policy, TokenPolicy):
        return frames
    groups = [EncodedGroups(frame.anchor, frame.keep, frame.tokens.float().cpu().numpy()) for frame in frames]
    thinned = []
    for frame, keep in zip(frames, drop_tokens(policy, groups), strict=True):
        # Tokens are in row-major order of the encoded groups, so only those groups of the new mask are read.
        left = torch.from_numpy(np.flatnonzero(keep[frame.keep])).to(frame.tokens.device)
        deepstack = None if frame.deepstack is None else frame.deepstack.index_select(1, left)
        thinned.append(
            replace(frame, keep=keep, tokens=frame.tokens.index_select(0, left), deepstack=deepstack)
        )
    return thinned


@dataclass(frozen=True, slots=True, eq=False)
class StreamBlock:
    """A stride block, and the facts that decide whether windows with this block are asked.

    `encoded` are the masks with which the tower ran, if they are known; a frame's own mask has fewer groups
    if tokens were dropped after the tower.
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
        """The masks with which the tower ran, else those of the frames."""
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
    """Yield the pruned and encoded blocks of one stream, each when it ends; strides without a frame give
    empty blocks.

    Args:
        stream: The stream's name.
        frames: The stream's sampled frames, in time order.
        tower: The vision tower.
        policy: Decides what is kept of each frame.
        samples: Grid points of a block.
        step_us: Microseconds between two points of the grid.
        window_blocks: Blocks of a window, which also limits the empty blocks for one hole.
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
    _following: int = 0
    _open: tuple[StrideFrame, ...] = ()

    def add(self, frame: StrideFrame) -> list[StreamBlock]:
        """Add the next frame and return the blocks that end before it."""
        ends = self._open and frame.slot // self.samples != self._open[0].slot // self.samples
        blocks = self.end() if ends else []
        self._open = (*self._open, frame)
        return blocks

    def end(self) -> list[StreamBlock]:
        """Close the block of the pending frames; return it, after the empty blocks before it. Empty if there
        are no pending frames."""
        members, self._open = self._open, ()
        if not members:
            return []
        index, samples = members[0].slot // self.samples, self.samples
        # A hole's empty blocks come before the block after the hole, so that windows close in time order.
        blocks = [
            StreamBlock(StrideBlock(self.stream, hole, ()), BlockFacts(hole, samples, 0))
            for hole in empty_indices(self._following, index, self.window_blocks)
        ]
        # One stride at a time, although a batch would be faster, because a live window must not wait for the
        # next block.
        encoded = encode_strides([members], self.tower, self.policy, self.step_us, self._carry)
        self._following, self._carry = index + 1, encoded.carry
        facts = BlockFacts(
            index,
            samples,
            len(members),
            sum(frame.sample.corrupt for frame in members),
            (self.tower.grid.group_rows, self.tower.grid.group_cols),
        )
        masks = tuple(frame.keep for frame in encoded.inputs)
        return [*blocks, StreamBlock(StrideBlock(self.stream, index, encoded.strides[0]), facts, masks)]
