"""Sampled frames become stride blocks of kept tokens: prune, then encode, in one process.

The fleet does the same in two services, with tensors between them (docs/architecture.md). The pipeline,
recordings and evaluation do it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from lookout.codec import Basis, SampledFrame
from lookout.pruning import Carry, PrunePolicy, Sample, prune_block
from lookout.vision import FrameInput, Tower
from lookout.windows import EncodedFrame

__all__ = ["EncodedStrides", "StrideFrame", "encode_strides", "strides_of"]


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
    policy: PrunePolicy,
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
