"""What a sandboxed decoder gives of a masked camera does not depend on what the mask hides."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict

import av
import numpy as np
import pytest

from lookout.pruning import GatherMethod, GatherSettings, MotionGather
from lookout.video.motion import Fit, MaskLayer, PictureMask
from lookout.video.motion.hiding import WHOLE
from lookout.video.segments import DecodedSegment, DecodeRequest, SamplingGrid
from lookout.video.segments.types import CodecError, JoinedClip, JoinRequest, Reason
from tests.flipping import MASK
from tests.masked_decoders import Pools, decoders
from tests.unit.video.segments.clips import encode, scene
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


@pytest.mark.slow
def test_flipping_what_is_hidden_changes_no_byte_of_a_segment_to_publish(pools: Pools) -> None:
    segment = encode("ts", frames=40, speed=3)
    first, second = (pool.masked(segment, MASK, 1 << 24) for pool in pools)
    assert first == second
    assert first != segment


def film(hidden: int) -> bytes:
    """A lossless film of a moving square, with a plain square of that brightness in it."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mpegts") as out:
        stream = out.add_stream("libx264", rate=10, options={"qp": "0", "g": "20", "sc_threshold": "0"})
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        for index in range(20):
            picture = scene(index, 128, 96, 2)
            picture[32:64, 48:80] = hidden
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
    return buffer.getvalue()


@pytest.mark.slow
def test_films_that_differ_only_inside_a_mask_are_published_as_the_same_bytes(pools: Pools) -> None:
    mask = PictureMask((MaskLayer(hide=(((0.3, 0.3), (0.7, 0.3), (0.7, 0.7), (0.3, 0.7)),)),))
    dark, bright = film(0), film(255)
    assert dark != bright
    masked = [pools[0].masked(film, mask, 1 << 24) for film in (dark, bright)]
    assert masked[0] == masked[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "bframes", "pts"),
    [("ts", 0, None), ("ts", 2, None), ("mkv", 0, None), ("ts", 0, [0, 100, 200, 900, 1000, 1033, 3000])],
)
def test_a_segment_to_publish_keeps_its_times_and_what_is_shown(
    pools: Pools, container: str, bframes: int, pts: list[int] | None
) -> None:
    segment = encode(container, frames=len(pts) if pts else 30, bframes=bframes, speed=1, pts=pts)
    wanted = DecodeRequest(112, 112, grid=SamplingGrid(50_000), mask=MASK)
    before = pools[0].decode(segment, wanted)
    after = pools[0].decode(pools[0].masked(segment, MASK, 1 << 24), wanted)
    assert [sample.stream_us for sample in after.frames] == [sample.stream_us for sample in before.frames]
    assert after.facts.first_us == before.facts.first_us
    assert after.facts.end_us == before.facts.end_us
    error = np.mean((after.pixels.astype(float) - before.pixels) ** 2)
    assert 10 * np.log10(255**2 / error) > 34  # dB


@pytest.mark.slow
def test_a_segment_that_is_hidden_whole_is_still_a_segment(pools: Pools) -> None:
    segment = pools[0].masked(encode("ts", frames=10), PictureMask((WHOLE,)), 1 << 24)
    assert pools[0].decode(segment, DecodeRequest(28, 28)).pixels.std() < 2


@pytest.mark.slow
def test_a_segment_that_cannot_be_masked_is_refused(pools: Pools) -> None:
    with pytest.raises(CodecError) as refused:
        pools[0].masked(encode("ts", frames=20), MASK, 1000)
    assert refused.value.reason is Reason.BYTES
    with pytest.raises(CodecError):
        pools[0].masked(b"no video", MASK, 1 << 24)
