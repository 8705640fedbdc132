"""Clips: a range of a recording whose packets are the source's own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest

from lookout.video.files import VideoReader
from lookout.video.sandbox import SandboxedReader
from lookout.video.segments import CodecError, Reason
from tests.unit.video.segments.clips import edited, encode, rest, trimmed

HEVC = "keyint=10:min-keyint=10:log-level=none:bframes=2:open-gop="
OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:b-adapt=2:keyint=12:min-keyint=12:scenecut=0"}


def payloads(data: bytes) -> list[bytes]:
    """The packets of the video of a file."""
    with av.open(io.BytesIO(data)) as container:
        return [bytes(packet) for packet in container.demux(container.streams.video[0]) if packet.size]


def units(packet: bytes, *, lengths: bool) -> list[bytes]:
    """The NAL units of an H.264 packet: with their lengths as in MP4, or behind start codes."""
    if not lengths:
        return [unit for unit in packet.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if unit]
    out, at = [], 0
    while at < len(packet):
        size = int.from_bytes(packet[at : at + 4], "big")
        out.append(packet[at + 4 : at + 4 + size])
        at += 4 + size
    return out


@cache
def source(kind: str) -> bytes:
    if kind.startswith("hevc"):
        options = {"x265-params": f"{HEVC}{int(kind != 'hevc')}"}
        return encode("mp4", "libx265", frames=40, gop=10, speed=2, options=options)
    if kind == "open gop":
        return encode("mp4", frames=60, speed=1, options=OPEN_GOP)
    if kind in ("vp8", "vp9"):
        codec = {"vp8": "libvpx", "vp9": "libvpx-vp9"}[kind]
        return encode("webm", codec, frames=40, gop=10, speed=2)
    if kind == "mjpeg":
        return encode("avi", "mjpeg", frames=40, speed=2, pix_fmt="yuvj420p")
    return encode(kind, frames=40, gop=10, bframes=2, speed=2)


@pytest.mark.parametrize("kind", ["mp4", "fmp4", "mov", "mkv", "flv", "hevc", "vp9", "vp8", "mjpeg"])
def test_the_packets_of_a_clip_are_those_of_its_range(kind: str) -> None:
    data = source(kind)
    with VideoReader(data) as reader, VideoReader(data) as whole:
        clip = reader.clip(1_500_000, 2_300_000)
        first, last = round(clip.start_us / 1e5), round(clip.end_us / 1e5) - 1
        assert first == (15 if kind == "mjpeg" else 10)
        assert 22 <= last <= 25
        packets, own = payloads(data), payloads(clip.data)
        begin = packets.index(own[0])
        assert packets[begin : begin + len(own)] == own
        assert len(own) == clip.frames == last - first + 1
        with VideoReader(clip.data) as shown:
            assert len(shown) == clip.frames
            assert (shown[:] == whole[first : last + 1]).all()
            assert np.abs(shown.times_us - (whole.times_us[first : last + 1] - clip.start_us)).max() <= 1000


def test_a_stream_with_start_codes_becomes_one_with_lengths() -> None:
    data = source("ts")
    with VideoReader(data) as reader:
        clip = reader.clip(1_500_000, 2_000_000)
        own = [units(packet, lengths=True) for packet in payloads(clip.data)]
        packets = [units(packet, lengths=False) for packet in payloads(data)]
        assert packets[10 : 10 + len(own)] == own
        with VideoReader(clip.data) as shown:
            assert (shown[0] == reader[10]).all()


@pytest.mark.parametrize("kind", ["open gop", "hevc open gop"])
def test_pictures_that_lead_the_first_keyframe_are_left_out(kind: str) -> None:
    """They refer to pictures before it: a player would show damage before the keyframe."""
    data = source(kind)
    with VideoReader(data) as reader, VideoReader(data) as whole:
        clip = reader.clip(2_500_000, 2_900_000)
        keys = np.flatnonzero(reader.table.clean).tolist()
        with VideoReader(clip.data) as shown:
            assert (shown[0] == whole[round(clip.start_us / 1e5)]).all()
            assert shown.table.clean[0]
        own, packets = payloads(clip.data), payloads(data)
        first = packets.index(own[0])
        assert first in keys[1:]
        assert reader.table.pts[first + 1] < reader.table.pts[first], "no picture leads the keyframe"
        leading = int((reader.table.pts[first:] < reader.table.pts[first]).sum())
        assert own[1:] == packets[first + 1 + leading :][: len(own) - 1]


@pytest.mark.parametrize("bframes", [0, 2])
def test_what_a_phone_trimmed_away_stays_hidden(bframes: int) -> None:
    """An edit list begins in the middle of a group, behind pictures with negative times."""
    data = trimmed(encode("mp4", frames=60, gop=12, bframes=bframes, speed=2), 2.05)
    with VideoReader(data) as reader, VideoReader(data) as whole:
        assert reader.table.discard[0], "the file hides nothing"
        clip = reader.clip(0, 300_000)
        assert payloads(clip.data) == payloads(data)[: len(payloads(clip.data))]
        with VideoReader(clip.data) as shown:
            assert clip.start_us == 0
            assert (shown[:3] == whole[:3]).all()
        later = reader.clip(1_000_000, 1_200_000)
        with VideoReader(later.data) as shown:
            assert (shown[0] == whole[round(later.start_us / 1e5)]).all()


def test_an_edit_inside_the_range_is_refused() -> None:
    data = edited(encode("mp4", frames=60, gop=12, speed=2), [(1.0, 0.5), (1.5, 3.5)])
    with VideoReader(data) as reader:
        with pytest.raises(CodecError, match=r"an edit list hides pictures.*shorter range") as refusal:
            reader.clip(500_000, 1_800_000)
        assert refusal.value.reason is Reason.REQUEST
        assert reader.clip(0, 500_000).frames == 5


def test_a_recording_without_a_keyframe_at_its_start() -> None:
    with VideoReader(rest(source("ts"), "ts", 4)) as reader:
        clip = reader.clip(0, 1_000_000)
        assert clip.start_us == 0
        with VideoReader(clip.data) as shown:
            assert (shown[0] == reader[0]).all()
    with (
        VideoReader(rest(source("ts"), "ts", 4, 8)) as reader,
        pytest.raises(CodecError, match="there is no keyframe before the range or in it"),
    ):
        reader.clip(0, 200_000)


def test_a_turned_picture_stays_turned(tmp_path: Path) -> None:
    with av.open(io.BytesIO(source("mp4"))) as container:
        buffer = io.BytesIO()
        with av.open(buffer, "w", format="mp4") as out:
            target = out.add_stream_from_template(container.streams.video[0])
            target.set_display_rotation(90)
            for packet in container.demux(container.streams.video[0]):
                if packet.size:
                    packet.stream = target
                    out.mux(packet)
    with VideoReader(buffer.getvalue()) as reader, VideoReader(reader.clip(0, 500_000).data) as shown:
        assert shown.size == reader.size == (128, 96)
        assert (shown[0] == reader[0]).all()


def test_what_cannot_be_cut_is_one_error_that_names_the_recording() -> None:
    with VideoReader(source("mp4")) as reader:
        with pytest.raises(
            CodecError, match=r"no clip of the bytes can be cut: .* the limit is 1000"
        ) as refusal:
            reader.clip(0, 1_000_000, max_bytes=1000)
        assert refusal.value.reason is Reason.BYTES
        for start_us, end_us in ((9_000_000, 10_000_000), (2, 1), (-5, 0)):
            with pytest.raises(CodecError, match="no picture from"):
                reader.clip(start_us, end_us)
    with (
        VideoReader(encode("h264", frames=20, bframes=2, speed=1)) as reader,
        pytest.raises(CodecError, match="may be shown in another order"),
    ):
        reader.clip(0, 1_000_000)
    with (
        VideoReader(encode("asf", "wmv2", frames=20, speed=1)) as reader,
        pytest.raises(CodecError, match="wmv2 video cannot be cut without encoding it again"),
    ):
        reader.clip(0, 1_000_000)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    path.write_bytes(source("mp4"))
    return path


@pytest.mark.slow
def test_confined_processes_cut_the_same_clip(film: Path) -> None:
    with SandboxedReader(film, workers=1) as confined, VideoReader(film) as plain:
        for range_us in ((1_500_000, 2_300_000), (0, 100_000)):
            assert confined.clip(*range_us) == plain.clip(*range_us)
        with pytest.raises(CodecError, match=r"no clip of .*film\.mp4 can be cut: .*no picture"):
            confined.clip(9_000_000, 10_000_000)
