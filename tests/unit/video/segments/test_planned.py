"""Decoding only what samples need gives the samples of decoding everything."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from lookout.pruning import GatherMethod, GatherSettings, MotionGather
from lookout.video.segments import DecodedSegment, DecodeRequest, Expected, Limits, SamplingGrid, Tail
from lookout.video.segments.container import Video
from lookout.video.segments.decoder import SinglePass, decode_segment
from tests.conftest import find_footage
from tests.unit.video.segments.clips import Recorder, encode

REQUEST = DecodeRequest(32, 32, vectors=False)
CLIPS = {
    "p": {"frames": 40, "gop": 40},
    "b": {"frames": 40, "gop": 40, "bframes": 3},
    "short groups": {"frames": 40, "gop": 9, "bframes": 2},
    "open groups": {"frames": 40, "gop": 10, "bframes": 2, "options": {"x264-params": "open-gop=1"}},
    "intra": {"frames": 20, "codec": "mjpeg", "container": "avi", "pix_fmt": "yuvj420p"},
    "hevc": {"frames": 40, "gop": 12, "bframes": 3, "codec": "libx265"},
    "mpeg4": {"frames": 40, "gop": 12, "bframes": 2, "codec": "mpeg4"},
    "variable": {"frames": 20, "gop": 6, "bframes": 2, "pts": [i * 90 + (i % 3) * 20 for i in range(20)]},
}


def whole(data: bytes, request: DecodeRequest) -> DecodedSegment:
    """The same, decoding every picture."""
    with Video(io.BytesIO(data), vectors=request.vectors, limits=request.limits) as video:
        return SinglePass(video, request, len(data)).run()


def facts(decoded: DecodedSegment) -> list[tuple[int, int, int, bool]]:
    """What is known of each sample."""
    return [(f.slot, f.info.index, f.stream_us, f.info.key) for f in decoded.frames]


def check_same(data: bytes, request: DecodeRequest) -> DecodedSegment:
    planned, every = decode_segment(data, request), whole(data, request)
    assert facts(planned) == facts(every)
    assert np.array_equal(planned.pixels, every.pixels)
    for name in ("continued", "next_slot", "end_stream_us", "geometry"):
        assert getattr(planned, name) == getattr(every, name)
    for name in ("frames", "keyframes", "first_us", "end_us", "fps", "timed"):
        assert getattr(planned.facts, name) == getattr(every.facts, name)
    assert planned.facts.decoded <= every.facts.decoded == every.facts.frames
    return planned


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("tail", Tail)
def test_samples_are_those_of_decoding_everything(name: str, tail: Tail) -> None:
    data = encode(**{"speed": 2, **CLIPS[name]})
    for step_us in (300_000, 500_000, 1_700_000):
        planned = check_same(data, replace(REQUEST, grid=SamplingGrid(step_us), tail=tail))
        assert planned.frames


def test_what_no_sample_needs_is_not_decoded() -> None:
    grid = SamplingGrid(1_000_000)
    b = check_same(encode(**CLIPS["b"]), replace(REQUEST, grid=grid))
    assert b.facts.decoded < 0.6 * b.facts.frames
    groups = check_same(encode(**CLIPS["short groups"]), replace(REQUEST, grid=grid))
    assert groups.facts.decoded < 0.5 * groups.facts.frames
    p = check_same(encode(frames=20, gop=20), replace(REQUEST, tail=Tail.LEAVE))
    assert (p.facts.decoded, p.facts.frames) == (16, 20)  # the last sample is frame 15


def test_a_continued_stream_and_named_frames() -> None:
    data = encode(frames=20, gop=20, bframes=2)
    expected = Expected(epoch_us=-7_400_000, next_us=0)
    planned = check_same(data, replace(REQUEST, expected=expected, first_slot=16))
    assert planned.frames[0].slot >= 16
    again = check_same(data, replace(REQUEST, frames=(3, 7, 19)))
    assert [f.info.index for f in again.frames] == [3, 7, 19]


def test_a_segment_without_a_sample_still_has_a_shape() -> None:
    data = encode(frames=4, gop=4)
    planned = check_same(data, replace(REQUEST, tail=Tail.LEAVE, first_slot=1, expected=Expected(0, 0)))
    assert not planned.frames
    assert planned.geometry.width == 128


@pytest.mark.parametrize("name", ["p", "b", "short groups"])
def test_motion_is_that_of_decoding_everything(name: str) -> None:
    """signed-sum leaves out unsampled B-frames, which are no link of its chain."""
    data = encode(**{"speed": 3, **CLIPS[name]})
    settings = GatherSettings(4, 4, 8, GatherMethod.SIGNED_SUM)
    request = DecodeRequest(32, 32)
    planned = decode_segment(data, replace(request, gather=MotionGather(settings)))
    every = whole(data, replace(request, gather=MotionGather(settings)))
    assert facts(planned) == facts(every)
    for ours, theirs in zip(planned.frames, every.frames, strict=True):
        assert ours.motion is not None
        assert theirs.motion is not None
        assert ours.motion.basis == theirs.motion.basis
        if ours.motion.v is not None and theirs.motion.v is not None:
            assert np.array_equal(ours.motion.v, theirs.motion.v)


def test_a_gather_that_needs_every_frame_gets_it() -> None:
    recorder = Recorder()
    decode_segment(encode(**CLIPS["b"]), DecodeRequest(32, 32, gather=recorder, tail=Tail.LEAVE))
    assert [frame.index for frame in recorder.frames] == list(range(40))


@pytest.mark.footage
@pytest.mark.long
def test_planned_decoding_equals_plain_decoding_on_real_files() -> None:
    """Every file that is not damaged."""
    folder = find_footage()
    assert folder is not None
    request = replace(REQUEST, limits=Limits(bytes=1 << 30, seconds=1e5, frames=1 << 20))
    files = [p for name in ("fixed", "moving", "edited", "odd") for p in sorted((folder / name).iterdir())]
    left_out = {"androidx_sample_with_invalid_nalu.mp4", "androidx_sample_audio_only.mp4"}
    checked = 0
    for path in files:
        if path.name not in left_out and path.suffix not in {".json", ".md"}:
            check_same(path.read_bytes(), request)
            checked += 1
    assert checked > 40
