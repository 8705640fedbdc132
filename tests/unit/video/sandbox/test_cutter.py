"""A camera's packets become segments, those of its last seconds too."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count

import av
import av.error
import pytest

from lookout.video.sandbox.cutter import CutSegment, Cutter
from lookout.video.sandbox.start_times import with_start_times
from tests.unit.video.segments.clips import encode


def pictures(segment: CutSegment) -> int:
    """How many pictures can be decoded."""
    with av.open(io.BytesIO(segment.data)) as container:
        return sum(not frame.is_corrupt for frame in container.decode(video=0))


def cut_clip(clip: bytes, *, failure: Exception | None = None) -> tuple[list[CutSegment], Cutter]:
    """The segments of a connection that ends behind a clip, and what cut them; packets come every second."""
    with av.open(io.BytesIO(clip)) as source:
        stream = source.streams.video[0]
        seconds = count()
        cutter = Cutter(stream, 2.0, 1 << 20, 10.0, clock=lambda: float(next(seconds)))

        def packets() -> Iterator[av.Packet]:
            yield from source.demux(stream)
            if failure is not None:
                raise failure

        segments: list[CutSegment] = []
        with nullcontext() if failure is None else pytest.raises(type(failure)):
            segments.extend(cutter.cut(packets()))  # keeps those before an error
        return segments, cutter


@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("failure", [None, av.error.TimeoutError(110, "timed out"), ConnectionResetError()])
def test_what_follows_the_last_keyframe_is_a_segment_too(failure: Exception | None, bframes: int) -> None:
    segments, cutter = cut_clip(encode("ts", frames=55, fps=10, gop=20, bframes=bframes), failure=failure)
    assert [pictures(segment) for segment in segments] == [20, 20, 14]
    assert cutter.dropped_packets == 1, "the last packet may be a part of its picture"


def test_a_connection_shorter_than_a_group_of_pictures_is_one_segment() -> None:
    segments, _ = cut_clip(encode("ts", frames=30, fps=10, gop=100))
    assert [pictures(segment) for segment in segments] == [29]
    assert segments[0].seconds == pytest.approx(2.8)


def test_a_lone_packet_is_no_segment() -> None:
    segments, cutter = cut_clip(encode("ts", frames=1, fps=10))
    assert segments == []
    assert cutter.dropped_packets == 1


def test_a_segment_says_how_long_ago_its_last_packet_came() -> None:
    segments, _ = cut_clip(encode("ts", frames=30, fps=10, gop=100))
    assert segments[0].waited_s == 1.0


@pytest.mark.parametrize("bframes", [0, 1, 3])
def test_times_that_ffmpeg_does_not_know_at_the_start_follow_from_those_behind(bframes: int) -> None:
    clip = encode("ts", frames=40, fps=10, gop=20, bframes=bframes)
    with av.open(io.BytesIO(clip)) as source:
        packets = [packet for packet in source.demux(video=0) if packet.size]
    truth = [(packet.pts, packet.dts) for packet in packets]
    packets[0].pts = None
    for packet in packets[: 1 + bframes]:
        packet.dts = None
    assert [(packet.pts, packet.dts) for packet in with_start_times(packets)] == truth


@pytest.mark.parametrize("bframes", [0, 2])
def test_a_start_below_zero_moves_the_whole_connection(bframes: int) -> None:
    """A camera whose second picture has the time 0, as FFmpeg counts an RTSP connection."""
    clip = encode("ts", frames=40, fps=10, gop=20, bframes=bframes)
    with av.open(io.BytesIO(clip)) as source:
        packets = [packet for packet in source.demux(video=0) if packet.size]
    zero = packets[1].dts
    assert zero is not None
    for packet in packets:
        assert packet.pts is not None
        assert packet.dts is not None
        packet.pts, packet.dts = packet.pts - zero, packet.dts - zero
    truth = [(packet.pts, packet.dts) for packet in packets]
    packets[0].pts = None
    for packet in packets[: 1 + bframes]:
        packet.dts = None
    shift = -(truth[0][1] or 0)
    assert shift > 0
    times = [(packet.pts, packet.dts) for packet in with_start_times(packets)]
    assert times == [((pts or 0) + shift, (dts or 0) + shift) for pts, dts in truth]


def test_a_stream_without_times_stays_as_it_is() -> None:
    with av.open(io.BytesIO(encode("ts", frames=40, fps=10))) as source:
        packets = [packet for packet in source.demux(video=0) if packet.size]
    for packet in packets:
        packet.pts = packet.dts = None
    assert list(with_start_times(packets)) == packets
    assert {packet.pts for packet in packets} == {None}
