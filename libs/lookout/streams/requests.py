"""Builds the decoder's request for a model's input.

This module must not import torch, because container images that only decode do not have it.
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

    Motion vectors are read only if `gather` is given. A segment that begins a stream is sampled from its
    first grid point on, and `first_slot` is ignored.

    Args:
        width: Width of the input in pixels.
        height: Height of the input in pixels.
        gather: How motion vectors are summed up per patch; None: they are not read.
        grid: The sampling grid; None: two samples a second.
        fit: How the upright picture is fitted into the input.
        expected: Where the camera's stream should continue; None: the segment begins a stream.
        first_slot: First grid point without a sample, if the stream continues.
        tail: Whether to sample the last grid cell now or leave it to the next segment.
        frames: Indices of the frames to return; None: the frames on the grid.
        limits: Limits of the segment; None: the defaults.
        mask: Areas to hide in every picture; None: no area.

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
