from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import av
import numpy as np
import pytest

from lookout.video.motion import Basis, Fit, Picture
from lookout.video.segments import (
    CodecError,
    DecodeRequest,
    Expected,
    Limits,
    Reason,
    SamplingGrid,
    SoftwareDecoder,
    Tail,
)
from tests.unit.video.segments.clips import Recorder, encode, interlaced, scene

CASES = [
    ("mp4", "libx264"),
    ("fmp4", "libx264"),
    ("ts", "libx264"),
    ("mkv", "libx264"),
    ("mov", "libx264"),
    ("flv", "libx264"),
    ("h264", "libx264"),
    ("avi", "mpeg4"),
    ("3gp", "mpeg4"),
    ("ts", "mpeg2video"),
    ("ps", "mpeg2video"),
    ("mp4", "libx265"),
    ("hevc", "libx265"),
    ("mkv", "libsvtav1"),
    ("webm", "libvpx-vp9"),
    ("avi", "mjpeg"),
]
NAMES = {"libx264": "h264", "libx265": "hevc", "libsvtav1": "av1", "libvpx-vp9": "vp9"}
WITHOUT_VECTORS = {"hevc", "av1", "vp9", "mjpeg"}
decode = SoftwareDecoder().decode


def clip(container: str, codec: str) -> bytes:
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg cannot encode {codec}")
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    quiet = {"libx265": {"x265-params": "log-level=none"}, "libsvtav1": {"preset": "12"}}.get(codec, {})
    fps = 25 if codec == "mpeg2video" else 10
    return encode(container, codec, fps=fps, frames=3 * fps, speed=2, pix_fmt=pix_fmt, options=quiet)


@pytest.mark.parametrize(("container", "codec"), CASES)
def test_every_container_and_codec_gives_all_its_frames(container: str, codec: str) -> None:
    recorder = Recorder()
    decoded = decode(clip(container, codec), DecodeRequest(56, 42, gather=recorder))
    facts, name = decoded.facts, NAMES.get(codec, codec)
    count = 75 if codec == "mpeg2video" else 30
    assert (facts.codec, facts.frames, facts.packets) == (name, count, count)
    assert (facts.width, facts.height, facts.corrupt, facts.refused, facts.jumps) == (128, 96, 0, 0, 0)
    assert facts.timed is (container not in ("h264", "hevc"))
    assert decoded.pixels.shape == (len(decoded.frames), 42, 56, 3)
    if facts.timed:
        assert [sample.slot for sample in decoded.frames] == list(range(len(decoded.frames)))
        assert len(decoded.frames) in (6, 7)
    assert facts.has_vectors is (name not in WITHOUT_VECTORS)
    assert facts.fallback is (Basis.LUMA if name in WITHOUT_VECTORS else Basis.VECTORS)
    assert len(recorder.frames) == count
    if facts.has_vectors:
        seen = list(zip(recorder.frames, recorder.maps, strict=True))
        if name == "mpeg2video":
            seen.pop()  # FFmpeg drains the last picture without its vectors
        assert all((blocks is None) == (frame.picture is Picture.I) for frame, blocks in seen)
    else:
        assert recorder.maps == [None] * count


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "mpeg2video"])
def test_vectors_point_to_where_the_content_was(codec: str) -> None:
    recorder = Recorder()
    fps = 25 if codec == "mpeg2video" else 10
    decode(encode("mkv", codec, frames=8, fps=fps, gop=8, speed=4), DecodeRequest(56, 42, gather=recorder))
    hits = total = 0
    for frame, blocks in zip(recorder.frames[1:7], recorder.maps[1:7], strict=True):
        assert blocks is not None
        left = 16 + 4 * frame.index
        inside = (
            (blocks.x >= left)
            & (blocks.x + blocks.w <= left + 32)
            & (blocks.y >= 16)
            & (blocks.y + blocks.h <= 48)
        )
        outside = (blocks.x + blocks.w <= left - 4) | (blocks.x >= left + 32) | (blocks.y >= 48)
        moved = (blocks.dx[inside] == -4) & (blocks.dy[inside] == 0)
        hits, total = hits + int(moved.sum()), total + int(inside.sum())
        assert (blocks.dx[outside] == 0).mean() > 0.9
        assert (blocks.source == -1).all()
    assert total > 0
    assert hits / total > 0.9


def test_vertical_motion_of_interlaced_pictures_is_in_frame_lines() -> None:
    recorder = Recorder()
    decode(interlaced(speed=4), DecodeRequest(28, 28, gather=recorder))
    assert all(frame.interlaced for frame in recorder.frames)
    vertical = np.concatenate([blocks.dy for blocks in recorder.maps if blocks is not None])
    assert np.median(vertical) == 4


def test_frames_are_converted_only_where_sampled_and_look_right() -> None:
    decoded = decode(encode(speed=2, options={"crf": "1"}), DecodeRequest(128, 96))
    for sample, pixels in zip(decoded.frames, decoded.pixels, strict=True):
        truth = scene(sample.info.index, 128, 96, 2).astype(int)
        assert np.abs(pixels.astype(int) - truth).mean() < 4


def test_gather_sees_every_frame_once_and_each_sample_after_its_frame() -> None:
    recorder = Recorder()
    decoded = decode(encode(bframes=2, speed=1), DecodeRequest(28, 28, gather=recorder))
    assert [frame.index for frame in recorder.frames] == list(range(30))
    assert all(a.time_us < b.time_us for a, b in pairwise(recorder.frames))
    motions = [sample.motion for sample in decoded.frames]
    pushed = [int(motion.v[0, 0]) for motion in motions if motion is not None and motion.v is not None]
    assert sum(pushed) == decoded.frames[-1].info.index + 1


def test_luma_is_the_coded_plane() -> None:
    recorder = Recorder(needs_luma=True)
    decode(encode(frames=3, pix_fmt="yuv420p"), DecodeRequest(28, 28, gather=recorder))
    with av.open(io.BytesIO(encode(frames=3))) as container:
        truth = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    assert len(recorder.lumas) == 3
    for luma, grey in zip(recorder.lumas, truth, strict=True):
        assert luma.shape == (96, 128)
        # `gray` is full range, the plane is not: compare their order of brightness.
        assert np.corrcoef(luma.ravel(), grey.ravel())[0, 1] > 0.999


def test_ten_bit_luma_is_reduced_to_eight() -> None:
    recorder, data = Recorder(needs_luma=True), encode(frames=2, pix_fmt="yuv420p10le")
    decode(data, DecodeRequest(28, 28, gather=recorder))
    with av.open(io.BytesIO(data)) as container:
        plane = next(container.decode(video=0)).planes[0]
    deep = np.frombuffer(plane, "<u2").reshape(-1, plane.line_size // 2)[:96, :128]
    assert recorder.lumas[0].dtype == np.uint8
    assert np.array_equal(recorder.lumas[0], deep >> 2)


def test_a_variable_rate_and_a_pause() -> None:
    pts = [0, 90, 210, 300, 390, 510, 6000, 6100, 6190, 6500]
    decoded = decode(encode("mkv", frames=10, pts=pts), DecodeRequest(28, 28))
    assert [sample.slot for sample in decoded.frames] == [0, 1, 12, 13]
    assert [sample.info.index for sample in decoded.frames] == [0, 5, 6, 9]


def test_a_stream_goes_on_from_segment_to_segment() -> None:
    whole = encode("ts", frames=40, gop=10)
    first = decode(whole, DecodeRequest(28, 28, tail=Tail.LEAVE))
    assert not first.continued
    expected = replace(first.following(), early_us=1_000_000)
    again = decode(whole, DecodeRequest(28, 28, expected=expected, first_slot=first.next_slot))
    assert not again.continued  # the same clock again is a reset: 4 s early
    assert again.frames[0].slot == 0
    moved = Expected(epoch_us=first.facts.first_us - 4_000_000, next_us=first.facts.first_us)
    later = decode(whole, DecodeRequest(28, 28, expected=moved, first_slot=8))
    assert later.continued
    assert [sample.slot for sample in later.frames] == [8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert later.end_stream_us == 8_000_000


def test_untimed_streams_continue_where_they_are_expected() -> None:
    data = encode("h264", frames=20)
    first = decode(data, DecodeRequest(28, 28, tail=Tail.LEAVE))
    second = decode(
        data, DecodeRequest(28, 28, expected=first.following(), first_slot=first.next_slot, tail=Tail.LEAVE)
    )
    assert second.continued
    slots = [sample.slot for decoded in (first, second) for sample in decoded.frames]
    assert slots == list(range(len(slots)))
    assert second.facts.first_us == first.facts.end_us


def test_a_stored_result_can_be_made_again() -> None:
    data = encode(speed=3, bframes=2)
    recorder = Recorder()
    decoded = decode(data, DecodeRequest(28, 28, gather=recorder))
    wanted = tuple(sample.info.index for sample in decoded.frames)
    again = decode(data, DecodeRequest(28, 28, frames=wanted, gather=Recorder()))
    assert again.frames == decoded.frames or [s.info for s in again.frames] == [
        s.info for s in decoded.frames
    ]
    assert (again.pixels == decoded.pixels).all()


@pytest.mark.parametrize("fit", Fit)
def test_pixels_and_blocks_meet(fit: Fit) -> None:
    """The square is found in the pixels where the geometry says its blocks are."""
    decoded = decode(encode(frames=6, options={"crf": "1"}), DecodeRequest(60, 80, fit=fit))
    x0, y0, x1, y1 = (float(v) for v in decoded.geometry.boxes(16, 16, 32, 32))
    bright = decoded.pixels[0, :, :, 1].astype(float)
    inside = bright[round(y0) + 1 : round(y1) - 1, max(0, round(x0) + 1) : round(x1) - 1]
    assert inside.mean() > 150
    below = bright[round(y1) + 1 : round(y1) + 6, max(0, round(x0)) : round(x1)]
    assert below.mean() < 130


def test_resolution_may_change_within_a_segment() -> None:
    recorder = Recorder()
    data = encode("h264", frames=10) + encode("h264", frames=10, size=(64, 48))
    decoded = decode(data, DecodeRequest(28, 28, grid=SamplingGrid(100_000), gather=recorder))
    assert decoded.facts.sizes == 2
    assert [(g.width, g.height) for g in recorder.geometries] == [(128, 96), (64, 48)]
    assert decoded.pixels.shape[1:] == (28, 28, 3)


def test_a_segment_must_start_at_a_keyframe() -> None:
    whole = encode("h264", frames=20, gop=10)
    second = whole.index(b"\0\0\1\x41", 200)  # a P-slice
    with pytest.raises(CodecError) as caught:
        decode(whole[second - 1 :], DecodeRequest(28, 28))
    assert caught.value.reason in (Reason.NO_KEYFRAME, Reason.UNREADABLE, Reason.NO_FRAMES)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(bytes=1000), Reason.BYTES),
        (Limits(side=100), Reason.DIMENSIONS),
        (Limits(pixels=5000), Reason.DIMENSIONS),
        (Limits(seconds=1.0), Reason.LENGTH),
        (Limits(frames=5), Reason.LENGTH),
    ],
)
def test_a_segment_beyond_a_limit_is_refused_with_its_reason(limits: Limits, reason: Reason) -> None:
    with pytest.raises(CodecError) as caught:
        decode(encode(), DecodeRequest(28, 28, limits=limits))
    assert caught.value.reason is reason


@pytest.mark.slow
def test_samples_beyond_the_memory_of_one_result_say_what_to_do() -> None:
    """Of a group of keyframes that is too long for a dense rate; at a lower one it is sampled whole."""
    data = encode("h264", frames=150, gop=150)
    side = 1024  # 85 samples in 256 MiB
    dense = DecodeRequest(side, side, grid=SamplingGrid(40_000))
    with pytest.raises(CodecError) as caught:
        decode(data, dense)
    assert caught.value.reason is Reason.LENGTH
    assert "85 samples of 1024x1024 pixels; the limit is 256 MiB (3.4 s at 25 a second)" in str(caught.value)
    assert "lower LOOKOUT_FPS" in str(caught.value)
    assert decode(data, DecodeRequest(side, side)).facts.frames == 150


def test_the_model_input_must_be_sane() -> None:
    with pytest.raises(CodecError, match="model input"):
        DecodeRequest(0, 28)


def test_damage_is_counted_and_never_raised() -> None:
    data = bytearray(encode("ts", frames=60, gop=20, speed=2, options={"crf": "8"}))
    for at in range(len(data) // 4, len(data), 1000):
        data[at] ^= 0x5A
    decoded = decode(bytes(data), DecodeRequest(28, 28))
    facts = decoded.facts
    assert facts.corrupt + facts.refused + facts.packets - facts.frames > 0
    assert facts.frames > 40


def test_damaged_frames_are_not_preferred() -> None:
    grid = SamplingGrid()
    assert grid.pick([0, 100_000], corrupt=[True, False]) == [(0, 1)]


def test_leading_pictures_lost_at_a_cut_are_counted() -> None:
    options = {"x264-params": "open-gop=1:bframes=3:b-adapt=0:keyint=10:min-keyint=10:scenecut=0"}
    data = encode("ts", frames=30, speed=1, options=options)
    packets = []
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        packets = [p for p in container.demux(stream) if p.size]
        keys = [i for i, p in enumerate(packets) if p.is_keyframe]
        assert len(keys) > 1
        buffer = io.BytesIO()
        with av.open(buffer, "w", format="mpegts") as out:
            target = out.add_stream_from_template(stream)
            for packet in packets[keys[1] :]:
                packet.stream = target
                out.mux_one(packet)
    leading = sum(p.pts < packets[keys[1]].pts for p in packets[keys[1] + 1 :])
    assert leading > 0
    facts = decode(buffer.getvalue(), DecodeRequest(28, 28)).facts
    assert facts.leading_lost == leading
    assert facts.frames == facts.packets - leading


@pytest.mark.parametrize("container", ["ts", "h264"])
def test_a_clip_that_ends_in_the_first_grid_cell_has_a_sample(container: str) -> None:
    """.2 s of two samples a second; a segment behind it takes no second sample for that cell."""
    request = DecodeRequest(28, 28, tail=Tail.LEAVE)
    short = decode(encode(container, frames=2), request)
    assert [frame.slot for frame in short.frames] == [0]
    following = replace(request, expected=short.following(), first_slot=short.next_slot)
    pts = [200 + 100 * number for number in range(10)]
    longer = decode(encode("ts", frames=10, pts=pts), following)
    if longer.continued:
        assert [frame.slot for frame in longer.frames] == [1]
