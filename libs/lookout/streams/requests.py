"""Builds the decoder's request for a model's input.

It does not need torch, because images that only decode do not have it.
"""

from __future__ import annotations

from lookout.pruning import GatherSettings, MotionGather
from lookout.video.motion import Fit, PictureMask
from lookout.video.segments import DecodeRequest, Expected, Limits, SamplingGrid, Tail


def decode_request(
    width: int,
    height: int,
    *,
    gather: GatherSettings | None = None,
    grid: SamplingGrid | None = None,
    fit: Fit = Fit.STRETCH,
    expected: Expected | None = None,
    first_slot: int = 0,
    tail: Tail = Tail.KEEP,
    frames: tuple[int, ...] | None = None,
    limits: Limits | None = None,
    mask: PictureMask | None = None,
) -> DecodeRequest:
    """Return a request for frames at a model's input size.

    Motion vectors are read only if they are gathered. A segment that begins a stream is sampled from its
    first grid point on, whatever was sampled before.

    Args:
        width: Width of the input in pixels.
        height: Height of the input in pixels.
        gather: How motion vectors are gathered; None: not at all.
        grid: When to sample; None: twice a second.
        fit: How the upright picture is fitted into the input.
        expected: Where the camera's stream should continue; None: the segment begins a stream.
        first_slot: First free grid point, if the stream continues.
        tail: Whether the last grid cell is left to the next segment.
        frames: Indexes of frames to return instead of those on the grid.
        limits: Limits of the segment.
        mask: Areas hidden in every picture.

    Raises:
        CodecError: The size is not a valid picture size.
    """
    motion = None if gather is None else MotionGather(gather)
    return DecodeRequest(
        width,
        height,
        grid=grid or SamplingGrid(),
        fit=fit,
        expected=expected,
        first_slot=first_slot if expected is not None else 0,
        tail=tail,
        frames=frames,
        gather=motion,
        vectors=motion is not None,
        limits=limits or Limits(),
        mask=mask,
    )
