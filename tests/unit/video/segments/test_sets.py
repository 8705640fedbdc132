"""Parameter sets that change under way and are not repeated: every picture is exact, from wherever read."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import av
import numpy as np
import pytest

from lookout.video.files import VideoReader
from lookout.video.motion.geometry import Fit
from lookout.video.motion.types import U8
from lookout.video.sandbox.cutter import Cutter
from lookout.video.segments import DecodeRequest, SamplingGrid, SoftwareDecoder, cut
from lookout.video.segments.nal import length_bytes, nal_units, set_key
from lookout.video.segments.picture import Painter, frame_geometry
from tests.numbered import HEIGHT, WIDTH, packets

GOP, HALF = 10, 40
EVERY = DecodeRequest(WIDTH, HEIGHT, grid=SamplingGrid(1000))
CODECS = ("libx264", "libx265")
CONTAINERS = ("mpegts", "matroska", "mp4", "flv", "two descriptions")


def _half(
    codec: str, first: int, offset: int, bframes: int
) -> tuple[list[bytes], list[tuple[int, int, bool]], bytes]:
    """(units, stamps, parameter sets) of the pictures of half a stream, which has other chroma offsets."""
    name = "chroma-qp-offset" if codec == "libx264" else "cbqpoffs"
    extra = f":{name}={offset}" + ("" if codec == "libx264" else f":crqpoffs={offset}")
    encoded, _ = packets(HALF, gop=GOP, bframes=bframes, codec=codec, first=first, extra=extra)
    sets = b""
    out: list[bytes] = []
    kind = "h264" if codec == "libx264" else "hevc"
    for packet in encoded:
        units = list(nal_units(bytes(packet), 0))
        own = [unit.rstrip(b"\0") for unit in units if set_key(unit, kind) is not None]
        sets = sets or b"".join(b"\0\0\0\1" + unit for unit in own)
        out.append(
            b"".join(b"\0\0\0\1" + unit.rstrip(b"\0") for unit in units if set_key(unit, kind) is None)
        )
    return out, [(packet.pts or 0, packet.dts or 0, packet.is_keyframe) for packet in encoded], sets


def painted(frame: av.VideoFrame) -> U8:
    return Painter().paint(frame, frame_geometry(frame, WIDTH, HEIGHT, Fit.STRETCH))


@cache
def stream(codec: str, bframes: int) -> tuple[list[av.Packet], bytes, bytes, U8]:
    """(packets with the second parameter sets once, the first sets, the second, all pictures)."""
    first, stamps, one = _half(codec, 0, 12, bframes)
    second, _, two = _half(codec, HALF, -12, bframes)
    assert one != two
    out: list[av.Packet] = []
    for half, datas in enumerate((first, second)):
        for (pts, dts, key), data in zip(stamps, datas, strict=True):
            packet = av.Packet((two if half and not pts else b"") + data)
            packet.pts, packet.dts = pts + half * HALF + 4, dts + half * HALF + 4
            packet.time_base, packet.is_keyframe = Fraction(1, 25), key
            out.append(packet)
    pictures: list[U8] = []
    for sets, datas in ((one, first), (two, second)):
        context = av.CodecContext.create("h264" if codec == "libx264" else "hevc", "r")
        for data in [sets + datas[0], *datas[1:], None]:
            packet = None if data is None else av.Packet(data)
            pictures += [painted(frame) for frame in context.decode(packet)]
    return out, one, two, np.stack(pictures)


@cache
def recording(codec: str, container: str, bframes: int) -> bytes:
    given, one, two, _ = stream(codec, bframes)
    buffer = io.BytesIO()
    format_ = "mp4" if container == "two descriptions" else container
    with av.open(buffer, "w", format=format_) as out:
        target = out.add_stream_from_template(_template(codec, one), opaque=True)
        for place, packet in enumerate(given):
            data = bytes(packet)
            if container == "mpegts" and packet.is_keyframe:  # its writer would add the first sets
                data = (one if place < HALF else two) + data.removeprefix(two)
            if container == "two descriptions":
                data = data.removeprefix(two)
            copy = av.Packet(data)
            copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
            copy.is_keyframe, copy.duration, copy.stream = packet.is_keyframe, 1, target
            out.mux_one(copy)
    data = buffer.getvalue()
    if container == "mpegts":
        data = _without_repeated_sets(data, codec)
    if container == "two descriptions":
        other = io.BytesIO()
        with av.open(other, "w", format="mp4") as out:
            target = out.add_stream_from_template(_template(codec, two), opaque=True)
            copy = av.Packet(bytes(given[HALF]).removeprefix(two))
            copy.pts = copy.dts = 0
            copy.time_base, copy.is_keyframe, copy.stream = Fraction(1, 25), True, target
            out.mux_one(copy)
        data = _two_descriptions(data, other.getvalue())
    return data


def _without_repeated_sets(data: bytes, codec: str) -> bytes:
    """MPEG-TS whose keyframes, but the first of each half, have filler data for parameter sets."""
    out, place = bytearray(data), 0
    kinds, filler = ((0x67, 0x68), 0x6C) if codec == "libx264" else ((0x40, 0x42, 0x44), 38 << 1)
    for at in range(0, len(out), 188):
        if (out[at + 1] & 0x1F, out[at + 2]) != (1, 0) or not out[at + 1] & 0x40:
            continue
        for kind in kinds:
            unit = out.find(bytes([0, 0, 1, kind]), at, at + 188)
            if unit >= 0 and place % HALF:
                out[unit + 3] = filler
        place += 1
    return bytes(out)


def _template(codec: str, sets: bytes) -> av.video.stream.VideoStream:
    """A stream with these parameter sets."""
    name = "h264" if codec == "libx264" else "hevc"
    given = stream(codec, 0)[0]
    data = b"".join((sets if i == 0 else b"") + bytes(packet) for i, packet in enumerate(given[:GOP]))
    file = av.open(io.BytesIO(data), format=name)
    _OPENED.append(file)
    return file.streams.video[0]


_OPENED: list[av.container.InputContainer] = []


def _boxes(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(body):
        size, kind = struct.unpack_from(">I4s", body, at)
        yield kind, body[at + 8 : at + size]
        at += size


def _inside(body: bytes, *path: bytes) -> bytes:
    for step in path:
        body = dict(_boxes(body))[step]
    return body


def _two_descriptions(one: bytes, two: bytes) -> bytes:
    """An MP4 file whose second half has the sample description of another."""
    path = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
    second = _inside(two, *path, b"stsd")[8:]
    table = dict(_boxes(_inside(one, *path)))
    sizes = struct.unpack(f">{2 * HALF}I", table[b"stsz"][12:])
    (start,) = struct.unpack_from(">I", table[b"stco"], 8)
    offsets = [start + sum(sizes[:i]) for i in range(2 * HALF)]
    boxes = {
        b"stsd": table[b"stsd"][:4] + struct.pack(">I", 2) + table[b"stsd"][8:] + second,
        b"stsc": struct.pack(">II6I", 0, 2, 1, 1, 1, HALF + 1, 1, 2),  # a chunk for every sample
        b"stco": struct.pack(f">II{2 * HALF}I", 0, 2 * HALF, *offsets),
    }

    def edited(body: bytes, path: tuple[bytes, ...]) -> bytes:
        out = b""
        for kind, inner in _boxes(body):
            body = edited(inner, path[1:]) if path[:1] == (kind,) else inner
            body = body if path else boxes.get(kind, inner)
            out += struct.pack(">I4s", 8 + len(body), kind) + body
        return out

    at = one.rindex(b"moov") - 4
    return one[:at] + edited(one[at:], path)


CASES = [
    (codec, container, bframes)
    for codec in CODECS
    for container in CONTAINERS
    for bframes in (0, 2)
    if (codec, container) != ("libx265", "flv")
]


@pytest.mark.parametrize(("codec", "container", "bframes"), CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_picture_of_a_file_is_exact(codec: str, container: str, bframes: int, threads: int) -> None:
    truth = stream(codec, bframes)[3]
    with VideoReader(recording(codec, container, bframes)) as reader:
        assert (reader.read(indices=range(2 * HALF), threads=threads).pixels == truth).all()
        for index in (5, HALF + 15, 2 * HALF - 1):
            assert (reader[index] == truth[index]).all()


def pictures(data: bytes) -> U8:
    return SoftwareDecoder().decode(data, EVERY).pixels


@pytest.mark.parametrize(("codec", "container", "bframes"), CASES)
def test_every_picture_of_pieces_and_clips_is_exact(codec: str, container: str, bframes: int) -> None:
    truth, data = stream(codec, bframes)[3], recording(codec, container, bframes)
    pieces = list(cut(io.BytesIO(data), target_s=0.4))
    assert len(pieces) == 2 * HALF // GOP
    assert (np.concatenate([pictures(piece.data) for piece in pieces]) == truth).all()
    longer = list(cut(io.BytesIO(data), target_s=0.8))
    assert (np.concatenate([pictures(piece.data) for piece in longer]) == truth).all()
    with VideoReader(data) as reader:
        for begin in (0.4, 1.2, 2.0, 2.4):
            clip = reader.clip(round(begin * 1e6), round(begin * 1e6) + 1_200_000)
            first = round(clip.start_us * 25 / 1e6)
            assert (pictures(clip.data) == truth[first : first + clip.frames]).all()


@pytest.mark.parametrize("codec", CODECS)
def test_every_picture_of_a_camera_is_exact(codec: str) -> None:
    truth, data = stream(codec, 0)[3], recording(codec, "mpegts", 0)
    with av.open(io.BytesIO(data)) as file:
        cutter = Cutter(file.streams.video[0], 0.4, 1 << 22, 10.0)
        segments = [segment.data for segment in cutter.cut(file.demux(video=0))]
    assert (np.concatenate([pictures(segment) for segment in segments]) == truth[:-1]).all()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_units_are_told_by_the_lengths_that_the_container_names(size: int) -> None:
    """A length of 256 to 511 in four bytes looks like a start code."""
    units = [bytes([0x67]) + bytes(range(1, 200)), bytes([0x65]) + b"\x7f" * (100 if size == 1 else 300)]
    data = b"".join(len(unit).to_bytes(size, "big") + unit for unit in units)
    assert list(nal_units(data, size)) == units


def test_the_bytes_of_a_length_are_read_from_the_configuration() -> None:
    avc = bytes([1, 100, 0, 30, 0xFC | 1, 0xE1, 0, 0])
    assert length_bytes(avc, "h264") == 2
    assert length_bytes(bytes([1]) + bytes(20) + bytes([3, 0]), "hevc") == 4
    assert length_bytes(b"\0\0\0\1\x67", "h264") == length_bytes(None, "hevc") == 0
