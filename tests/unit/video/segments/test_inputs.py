"""Files that cameras and recorders really write, and that are not what they seem."""

from __future__ import annotations

import io
import os
import struct
import threading
from contextlib import suppress
from fractions import Fraction

import av
import numpy as np
import pytest

from lookout.video.files import VideoReader
from lookout.video.segments import CodecError, DecodeRequest, Reason, SamplingGrid, SoftwareDecoder, cut
from lookout.video.segments.container import Video
from lookout.video.segments.types import FILE_LIMITS
from tests.numbered import HEIGHT, WIDTH, clip, number, packets

EVERY = DecodeRequest(WIDTH, HEIGHT, grid=SamplingGrid(1000))
KEY = "00112233445566778899aabbccddeeff"


def muxed(data: bytes, **options: str) -> bytes:
    """The packets of a clip as MP4."""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format="mp4", options=options) as out:
        target = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = target
                out.mux_one(packet)
    return buffer.getvalue()


def packed(encoded: list[av.Packet], codec: str, step: Fraction) -> bytes:
    """Encoded pictures as MP4, their times in steps."""
    buffer = io.BytesIO()
    raw = io.BytesIO(b"".join(map(bytes, encoded)))
    with av.open(raw, format=codec) as source, av.open(buffer, "w", format="mp4") as out:
        target = out.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in encoded:
            packet.time_base, packet.stream = step, target
            out.mux_one(packet)
    return buffer.getvalue()


def error_of(data: bytes) -> CodecError:
    with pytest.raises(CodecError) as raised, VideoReader(data) as reader:
        len(reader)
    return raised.value


def test_an_encrypted_file_is_named_as_such() -> None:
    data = muxed(clip(30), encryption_scheme="cenc-aes-ctr", encryption_key=KEY, encryption_kid=KEY)
    assert error_of(data).reason is Reason.NO_DECODER
    assert "encrypted" in str(error_of(data))
    with pytest.raises(CodecError, match="encrypted"):
        list(cut(io.BytesIO(data)))


def test_playlists_and_fragments_are_named_as_such() -> None:
    playlist = b"\xef\xbb\xbf#EXTM3U\n#EXTINF:4,\npart.ts\n#EXT-X-ENDLIST\n"
    assert ".m3u8" in str(error_of(playlist))
    assert ".mpd" in str(error_of(b'<?xml version="1.0"?>\n<MPD type="static"></MPD>'))
    whole = muxed(clip(30), movflags="frag_keyframe+empty_moov+default_base_moof")
    fragment = whole[whole.index(b"moof") - 4 :]
    assert ".m4s" in str(error_of(fragment))
    assert ".m4s" in str(error_of(b"\0\0\0\x18stypmsdh\0\0\0\0msdhmsix" + fragment))


@pytest.mark.slow
@pytest.mark.parametrize("movflags", ["", "frag_keyframe+empty_moov"])
def test_an_mp4_whose_index_comes_last_is_not_read_from_a_pipe(movflags: str) -> None:
    whole = muxed(clip(800, gop=400), **({"movflags": movflags} if movflags else {}))
    assert len(whole) > 1 << 16, "FFmpeg goes back within what it has buffered"
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as target, suppress(BrokenPipeError):
            target.write(whole)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with open(reading, "rb") as pipe:
            if movflags:
                assert len([*cut(pipe, target_s=10.0)]) == 2
                return
            with pytest.raises(CodecError, match=r"the index \(moov\) of this MP4 comes after") as raised:
                list(cut(pipe))
        assert raised.value.reason is Reason.UNREADABLE
    finally:
        writer.join()
    assert len([*cut(io.BytesIO(whole), target_s=10.0)]) == 2


def test_nothing_in_a_pipe_is_no_fault_of_a_container() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(CodecError) as raised:
        list(cut(Pipe(b"")))
    assert raised.value.reason is Reason.EMPTY
    assert "nothing arrived through the pipe" in str(raised.value)
    assert "-f mp4 -movflags frag_keyframe+empty_moov" in str(raised.value)


@pytest.mark.parametrize("bframes", [0, 2])
def test_hevc_whose_every_sample_is_called_a_keyframe_is_cut_at_its_own(bframes: int) -> None:
    encoded, _ = packets(60, gop=20, bframes=bframes, codec="libx265", extra=":open-gop=0")
    for packet in encoded:
        packet.pts, packet.dts = packet.pts + 4, packet.dts + 4
    data = packed(encoded, "hevc", Fraction(1, 25)).replace(
        b"stss", b"free"
    )  # without the table every sample is one
    with VideoReader(data) as reader:
        assert reader.facts.keyframes == 3
        assert [number(picture) for picture in reader.read(indices=range(60), threads=2).pixels] == [
            *range(60)
        ]
    pieces = list(cut(io.BytesIO(data), target_s=0.5))
    assert len(pieces) == 3
    shown = [pixels for piece in pieces for pixels in SoftwareDecoder().decode(piece.data, EVERY).pixels]
    assert [number(picture) for picture in shown] == [*range(60)]


def test_dropped_pictures_of_an_avi_file_are_no_damage() -> None:
    """Half of its index are empty chunks."""
    data = bytearray(clip(50, container="avi"))
    at = data.index(b"strh") + 8 + 32
    assert struct.unpack_from("<I", data, at)[0] == 50, "its pictures"
    struct.pack_into("<I", data, at, 100)
    with VideoReader(bytes(data)) as reader:
        assert not reader.facts.damage
        assert len(reader) == 50
    ends: list[str] = []
    list(cut(io.BytesIO(bytes(data)), broken_off=ends.append))
    assert not ends


@pytest.mark.parametrize(("fps", "gop", "frames"), [("1/20", 10, 30), ("1/20", 250, 300), ("10", 1500, 1600)])
def test_time_lapse_and_long_groups_are_decoded_whole(fps: str, gop: int, frames: int) -> None:
    """A picture every 20 s, and groups of 150 s."""
    step = 1 / Fraction(fps)
    encoded, _ = packets(frames, gop=gop)
    data = packed(encoded, "h264", step)
    shown: list[int] = []
    times: list[float] = []
    request = DecodeRequest(WIDTH, HEIGHT, grid=SamplingGrid(500_000))
    for piece in cut(io.BytesIO(data)):
        decoded = SoftwareDecoder().decode(piece.data, request)
        shown += [number(picture) for picture in decoded.pixels]
        times += [(piece.start_us + frame.info.time_us) / 1e6 for frame in decoded.frames]
    if step >= 1:
        assert shown == [*range(frames)]
    assert times == pytest.approx([float(picture * step) for picture in shown])
    assert times[-1] >= float(frames * step) - max(1, float(step)) - 1e-3


def test_large_pictures_are_read_and_the_error_names_the_settings() -> None:
    assert FILE_LIMITS.pixels >= 36_000_000
    data = clip(30)
    with Video(data, limits=FILE_LIMITS) as video:
        video.check_size(6000, 6000)
        with pytest.raises(CodecError, match="LOOKOUT_SEGMENT_PIXELS"):
            video.check_size(8000, 6000)
    assert np.prod((4000, 3000)) < DecodeRequest(64, 64).limits.pixels
