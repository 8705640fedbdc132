"""Sampled frames become stride blocks of kept tokens: prune, then encode, in one process.

The fleet does the same in two services, with tensors between them (docs/architecture.md). Empty blocks stand
for holes, as they do there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from lookout.motion import Basis
from lookout.pruning import Carry, MaskPolicy, Sample, prune_block
from lookout.segments import SampledFrame
from lookout.streams.window import BlockFacts
from lookout.vision import FrameInput, Tower
from lookout.windows import EncodedFrame, StrideBlock

__all__ = ["EncodedStrides", "StreamBlock", "StrideFrame", "encode_strides", "stream_blocks", "strides_of"]


@dataclass(frozen=True, slots=True, eq=False)
class StrideFrame:
    """A sampled frame on its way into a stride block.

    Attributes:
        sample: What pruning sees of it.
        time_us: Its own stream time in microseconds.
        slot: The point of the sampling grid that it was taken for.
    """

    sample: Sample
    time_us: int
    slot: int

    @classmethod
    def of(cls, frame: SampledFrame, pixels: NDArray[np.uint8]) -> StrideFrame:
        """A decoded frame.

        Args:
            frame: Its facts.
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
    """Encoded strides.

    Attributes:
        strides: The encoded frames of every stride, in the order of the strides.
        carry: What pruning of the next stride must know.
        inputs: What the tower encoded, for its FLOPs.
    """

    strides: list[tuple[EncodedFrame, ...]]
    carry: Carry | None
    inputs: list[FrameInput]


def strides_of(frames: Iterable[StrideFrame], samples: int) -> Iterator[tuple[int, list[StrideFrame]]]:
    """Frames of one stream, cut into strides on the sampling grid.

    Args:
        frames: In the order of time.
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
        policy: Which patches are kept.
        step_us: Microseconds between two points of the sampling grid.
        carry: What the stride before left; None: a stream begins.
    """
    inputs: list[FrameInput] = []
    pictures: list[list[tuple[bool, list[StrideFrame]]]] = []
    for members in strides:
        masks, carry = prune_block([each.sample for each in members], tower.grid, policy, carry)
        pictures.append([(mask.anchor, [members[i] for i in mask.frames]) for mask in masks])
        inputs += [
            FrameInput(np.stack([members[i].sample.pixels for i in mask.frames]), mask.keep) for mask in masks
        ]
    encoded = iter(zip(inputs, tower.encode(inputs), strict=True))
    found = []
    for stride in pictures:
        frames = []
        for anchor, shown in stride:
            given, tokens = next(encoded)
            frames.append(
                EncodedFrame(
                    time_us=shown[0].time_us,
                    anchor=anchor,
                    keep=given.keep,
                    tokens=tokens.tokens,
                    deepstack=tokens.deepstack,
                    slot_us=shown[0].slot * step_us,
                    label_us=sum(each.time_us for each in shown) // len(shown),
                )
            )
        found.append(tuple(frames))
    return EncodedStrides(found, carry, inputs)


@dataclass(frozen=True, slots=True, eq=False)
class StreamBlock:
    """A stride block, and what decides whether windows with it are asked."""

    block: StrideBlock
    facts: BlockFacts

    @property
    def seen(self) -> StrideBlock:
        """The block as windows see it: without frames where none of them is usable."""
        return self.block if self.facts.usable else replace(self.block, frames=())

    @classmethod
    def of(cls, block: StrideBlock, samples: int) -> StreamBlock:
        """An encoded block of which nothing else is known: none of its frames is damaged."""
        frames = len(block.frames)
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
    """The pruned and encoded blocks of one stream, as they end; strides without a frame are empty blocks.

    Args:
        stream: Its name.
        frames: Its sampled frames, in the order of time.
        tower: The vision tower.
        policy: What is kept of each frame.
        samples: Grid points of a block.
        step_us: Microseconds between two points of the grid.
        window_blocks: Blocks of a window: of a long hole no more empty blocks are given.
    """
    carry: Carry | None = None
    following = 0
    for index, members in strides_of(frames, samples):
        for hole in range(following, min(index, following + window_blocks)):
            yield StreamBlock(StrideBlock(stream, hole, ()), BlockFacts(hole, samples, 0))
        following = index + 1
        encoded = encode_strides([members], tower, policy, step_us, carry)
        carry = encoded.carry
        facts = BlockFacts(
            index,
            samples,
            len(members),
            sum(frame.sample.corrupt for frame in members),
            (tower.grid.group_rows, tower.grid.group_cols),
        )
        yield StreamBlock(StrideBlock(stream, index, encoded.strides[0]), facts)
