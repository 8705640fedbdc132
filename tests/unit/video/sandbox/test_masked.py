"""What a sandboxed decoder gives of a masked camera does not depend on what the mask hides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest

from lookout.pruning import GatherMethod, GatherSettings, MotionGather
from lookout.video.motion import Fit
from lookout.video.segments import DecodedSegment, DecodeRequest
from lookout.video.segments.types import JoinedClip, JoinRequest
from tests.flipping import MASK
from tests.masked_decoders import Pools, decoders
from tests.unit.video.segments.clips import encode
from tests.unit.video.segments.test_joining import END_US, segments


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Two decoders that differ only in what the mask hides."""
    yield from decoders()


def request(method: GatherMethod, *, masked: bool, fit: Fit = Fit.STRETCH) -> DecodeRequest:
    """Frames, motion and residuals at a model's input size."""
    gather = MotionGather(GatherSettings(8, 8, 14, method, residual=True))
    return DecodeRequest(112, 112, fit=fit, gather=gather, mask=MASK if masked else None)


def check_equal(first: DecodedSegment, second: DecodedSegment) -> None:
    """Every bit of both."""
    np.testing.assert_array_equal(first.pixels, second.pixels)
    np.testing.assert_equal(asdict(first), asdict(second))


@pytest.mark.slow
@pytest.mark.parametrize("method", list(GatherMethod))
@pytest.mark.parametrize(("codec", "bframes"), [("libx264", 2), ("mpeg4", 0)])
def test_flipping_what_is_hidden_changes_no_bit_of_a_decoded_segment(
    pools: Pools, method: GatherMethod, codec: str, bframes: int
) -> None:
    clip = encode("ts", codec, frames=40, bframes=bframes, speed=3)
    shown, flipped = (pool.decode(clip, request(method, masked=False)) for pool in pools)
    assert not np.array_equal(shown.pixels, flipped.pixels)
    masked, flipped_and_masked = (pool.decode(clip, request(method, masked=True)) for pool in pools)
    check_equal(masked, flipped_and_masked)
    assert not np.array_equal(shown.pixels, masked.pixels)
    moves = [sample.motion.v for sample in masked.frames if sample.motion and sample.motion.v is not None]
    assert any(np.any(grid != 0) for grid in moves)  # what is shown still moves


@pytest.mark.slow
@pytest.mark.parametrize("fit", [Fit.COVER, Fit.CONTAIN])
def test_the_same_with_other_ways_to_fit(pools: Pools, fit: Fit) -> None:
    clip = encode("ts", frames=20, speed=2)
    wanted = request(GatherMethod.SIGNED_SUM, masked=True, fit=fit)
    check_equal(*(pool.decode(clip, wanted) for pool in pools))


@pytest.mark.slow
@pytest.mark.parametrize("fragment", [0, 1])
def test_flipping_what_is_hidden_changes_no_bit_of_a_clip(pools: Pools, fragment: int) -> None:
    parts = segments("ts", "libx264", 2)
    wanted = JoinRequest(parts, 0, END_US, 1 << 24, fragment=fragment, mask=MASK)
    clips: list[JoinedClip] = [pool.join(wanted) for pool in pools]
    assert clips[0].data == clips[1].data
    assert clips[0] == clips[1]
    assert clips[0].masked
    assert clips[0].codec == "h264"
