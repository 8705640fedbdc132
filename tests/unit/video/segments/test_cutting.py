from __future__ import annotations

import io
import os
import threading
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from lookout.video.files import VideoReader
from lookout.video.segments import (
    CodecError,
    DecodedSegment,
    DecodeRequest,
    Reason,
    Segment,
    SoftwareDecoder,
    cut,
)
from lookout.video.segments.nal import nal_units, recovery_frames
from tests.unit.video.segments.clips import encode

EVERY = tuple(range(1000))
CASES = [
    ("mp4", "libx264", "mpegts"),
    ("mkv", "libx264", "mpegts"),
    ("ts", "libx264", "mpegts"),
    ("h264", "libx264", "h264"),
    ("mp4", "libx265", "mpegts"),
    ("avi", "mpeg4", "mpegts"),
    ("mkv", "mpeg2video", "mpegts"),
    ("webm", "libvpx-vp9", "mp4"),
    ("mkv", "libsvtav1", "mp4"),
    ("avi", "mjpeg", "mov"),
]
QUIET = {"libx265": {"x265-params": "log-level=none:open-gop=0"}, "libsvtav1": {"preset": "12"}}


class Pipe(io.BytesIO):
    """Bytes that can be read once."""

    def seekable(self) -> bool:
        return False


def decode(data: bytes) -> DecodedSegment:
    return SoftwareDecoder().decode(data, DecodeRequest(32, 24, frames=EVERY, vectors=False))


def clip(container: str, codec: str, **more: object) -> bytes:
    fps = 25 if codec == "mpeg2video" else 10
    fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    options = QUIET.get(codec, {})
    return encode(container, codec, fps=fps, frames=5 * fps, gop=fps, speed=1, pix_fmt=fmt, options=options)


@pytest.mark.slow
@pytest.mark.parametrize(("container", "codec", "into"), CASES)
def test_pieces_decode_alone_to_the_same_pictures(container: str, codec: str, into: str) -> None:
    whole = clip(container, codec)
    pieces = list(cut(io.BytesIO(whole), target_s=2))
    assert {piece.container for piece in pieces} == {into}
    assert len(pieces) == 3
    parts = [decode(piece.data) for piece in pieces]
    assert (np.concatenate([part.pixels for part in parts]) == decode(whole).pixels).all()
    assert [piece.index for piece in pieces] == [0, 1, 2]
    assert [piece.frames for piece in pieces] == [part.facts.frames for part in parts]
    assert [round(piece.start_us / 1e6, 2) for piece in pieces] == [0, 2, 4]
    assert [round(piece.duration_us / 1e6, 2) for piece in pieces] == [2, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("container", "codec", "into"), [case for case in CASES if case[2] != "h264"])
def test_time_stamps_stay_the_source_s(container: str, codec: str, into: str) -> None:
    pieces = list(cut(io.BytesIO(clip(container, codec)), target_s=1))
    firsts = [decode(piece.data).facts.first_us for piece in pieces]
    for piece, first in zip(pieces, firsts, strict=True):
        assert abs((first - firsts[0]) - piece.start_us) < 2000


def test_pieces_continue_each_other() -> None:
    expected = None
    for piece in cut(io.BytesIO(clip("mp4", "libx264")), target_s=1):
        decoded = SoftwareDecoder().decode(piece.data, DecodeRequest(28, 28, expected=expected))
        assert decoded.continued is (piece.index > 0)
        expected = decoded.following()


def test_a_number_of_keyframes_and_b_frames() -> None:
    data = encode("mp4", frames=50, gop=10, bframes=2, speed=1)
    pieces = list(cut(io.BytesIO(data), keyframes=2))
    assert [piece.frames for piece in pieces] == [20, 20, 10]
    parts = [decode(piece.data) for piece in pieces]
    assert (np.concatenate([part.pixels for part in parts]) == decode(data).pixels).all()


def test_bytes_are_bounded() -> None:
    data = encode("ts", frames=50, gop=10, options={"crf": "10"})
    limit = max(len(piece.data) for piece in cut(io.BytesIO(data), target_s=1)) + 4000
    assert all(len(piece.data) <= limit for piece in cut(io.BytesIO(data), target_s=60, max_bytes=limit))
    with pytest.raises(CodecError) as caught:
        list(cut(io.BytesIO(data), max_bytes=3000))
    assert caught.value.reason is Reason.BYTES


def test_a_pipe_is_cut_as_it_comes() -> None:
    data = clip("ts", "libx264")
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as sink:
            sink.write(data)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(read, "rb") as source:
        pieces = list(cut(source, target_s=1))
    thread.join()
    assert sum(piece.frames for piece in pieces) == 50


def test_a_clock_that_jumps_ends_a_piece() -> None:
    def late(offset: int) -> bytes:
        return encode("mkv", frames=20, gop=10, pts=[offset + 100 * i for i in range(20)])

    # Transport streams can be joined as a recorder would.
    sources = [io.BytesIO(late(at)) for at in (500_000, 3_000)]
    joined = b"".join(piece.data for source in sources for piece in cut(source, target_s=60))
    pieces = list(cut(io.BytesIO(joined), target_s=60))
    assert [(piece.frames, piece.jump) for piece in pieces] == [(20, False), (20, True)]
    assert pieces[1].start_us == 2_000_000


@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
def test_a_hole_of_a_file_takes_its_time(container: str) -> None:
    """As a player shows it, and as a reader of the recording counts it."""
    hole_ms = 45_000
    times = [100 * i + hole_ms * (i >= 20) for i in range(40)]
    data = encode(container, frames=40, gop=10, pts=times)
    pieces = list(cut(io.BytesIO(data)))
    assert [piece.jump for piece in pieces] == [False, True]
    assert pieces[0].duration_us == pytest.approx(2_000_000, abs=1000)
    with VideoReader(data) as reader:
        behind_us = reader.picks(fps=10)[20].time_us
    assert pieces[1].start_us == pytest.approx(behind_us, abs=1000) == 47_000_000
    if container != "mp4":  # whose index a pipe may have at its end
        assert [piece.start_us for piece in cut(Pipe(data))] == [0, pytest.approx(47_000_000, abs=1000)]


def test_a_pause_between_keyframes_moves_no_later_piece() -> None:
    """An encoder that writes a picture only where something moves."""
    times = [100 * i + 28_000 * (i >= 35) for i in range(60)]
    pieces = list(cut(io.BytesIO(encode("mkv", frames=60, gop=10, pts=times))))
    assert [(piece.start_us, piece.jump) for piece in pieces] == [
        (0, False),
        (2_000_000, False),
        (32_000_000, False),
    ]
    assert pieces[-1].start_us + pieces[-1].duration_us == 34_000_000


def muxed(data: bytes, container: str, shift_s: float = 0, **options: str) -> bytes:
    """The packets of a clip, later by `shift_s`, in another container."""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=container, options=options) as out:
        (stream,) = source.streams
        target = out.add_stream_from_template(stream)
        for packet in source.demux():
            if packet.size:
                shift = round(shift_s / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, target
                out.mux_one(packet)
    return buffer.getvalue()


def test_decoding_times_below_zero_of_a_flash_file_are_near_zero() -> None:
    """FFmpeg writes 31 bits of them, and reads them as 25 days."""
    clip = encode("mp4", frames=40, gop=10, bframes=3, speed=1)
    data = muxed(clip, "flv", avoid_negative_ts="disabled")
    pieces = list(cut(io.BytesIO(data)))
    assert [(piece.start_us, piece.jump) for piece in pieces] == [(0, False), (2_000_000, False)]
    assert (np.concatenate([decode(piece.data).pixels for piece in pieces]) == decode(clip).pixels).all()
    with VideoReader(data) as reader:
        assert reader.duration == pytest.approx(4)


def test_a_stream_whose_identifier_changes_goes_on() -> None:
    """As in recordings of two connections that a recorder joined."""
    clip = encode("ts", frames=20, gop=10)
    joined = b"".join(
        muxed(clip, "mpegts", shift_s=2 * part, mpegts_copyts="1", mpegts_start_pid=pid)
        for part, pid in enumerate(("0x100", "0x200"))
    )
    assert sum(piece.frames for piece in cut(io.BytesIO(joined))) == 40
    with VideoReader(joined) as reader:
        assert len(reader) == 40


def test_a_file_without_pictures_says_what_it_is() -> None:
    whole = encode("mp4", frames=10)
    unfinished = whole[: whole.index(b"moov") - 4]
    with pytest.raises(CodecError, match=r"MP4 file has no index \(moov\): the recording was not finished"):
        list(cut(io.BytesIO(unfinished)))
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        cover = out.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        out.mux(cover.encode(av.VideoFrame(64, 48, "yuvj420p")))
        out.mux(cover.encode(None))
    with pytest.raises(CodecError, match="has a cover picture, but no video stream"):
        list(cut(io.BytesIO(buffer.getvalue())))


def test_an_mp4_file_whose_box_is_larger_than_any_file_is_refused_in_words() -> None:
    kind = (20).to_bytes(4, "big") + b"ftypisom" + bytes(8)
    box = (1).to_bytes(4, "big") + b"mdat" + (1 << 63).to_bytes(8, "big")
    with pytest.raises(CodecError, match="MP4 file has no index"):
        list(cut(io.BytesIO(kind + box)))


def test_what_precedes_the_first_keyframe_is_dropped() -> None:
    whole = encode("h264", frames=20, gop=10)
    tail = whole[whole.index(b"\0\0\1\x41", 200) - 1 :]
    pieces = list(cut(io.BytesIO(tail)))
    assert sum(piece.frames for piece in pieces) == 10
    assert decode(pieces[0].data).facts.frames == 10


def test_a_turned_picture_stays_turned(footage: Path) -> None:
    for name, turn in (("decord_rot90.mov", 90), ("decord_rot180.mov", 180), ("decord_rot270.mov", 270)):
        (piece,) = cut(footage / "odd" / name)
        assert decode(piece.data).geometry.rotation == turn
        assert (decode(piece.data).pixels == decode((footage / "odd" / name).read_bytes()).pixels).all()


def test_gradual_refresh_is_not_cut_where_the_picture_is_half_there(footage: Path) -> None:
    pieces = list(cut(footage / "derived" / "intra_refresh_no_idr.h264"))
    assert sum(decode(piece.data).facts.frames for piece in pieces) == 150


def test_errors() -> None:
    with pytest.raises(CodecError, match="positive"):
        list(cut(io.BytesIO(b""), target_s=0))
    with pytest.raises(CodecError) as caught:
        list(cut(io.BytesIO(b"")))
    assert caught.value.reason is Reason.EMPTY


def test_recovery_points_are_read() -> None:
    assert recovery_frames(bytes([6, 1, 0b1_0000000, 0x80])) == 0
    assert recovery_frames(bytes([5, 2, 0xAA, 0xBB, 6, 2, 0b00100_000, 0x80])) == 3
    assert recovery_frames(b"") == 0
    assert list(nal_units(b"\0\0\0\1\x67\x01\0\0\1\x65\x02", 0)) == [b"\x67\x01", b"\x65\x02"]
    assert list(nal_units(b"\0\0\0\2\x67\x01\0\0\0\1\x65", 4)) == [b"\x67\x01", b"\x65"]


def test_segments_are_plain_records() -> None:
    pieces: list[Segment] = list(cut(io.BytesIO(clip("mp4", "libx264")), target_s=1))
    assert all(a.start_us + a.duration_us == b.start_us for a, b in pairwise(pieces))
