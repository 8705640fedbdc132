"""Damaged pictures against the undamaged decode: what differs is marked, and what is marked may differ."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from lookout.video.segments import CodecError, DecodeRequest, SamplingGrid, SoftwareDecoder, cut
from lookout.video.segments.damage import TS_PACKET, CounterScan, breaks_of
from tests.unit.video.segments.clips import encode

STEP_US = 40_000  # every frame of 25 a second
GOP, FRAMES = 20, 60
decode = SoftwareDecoder().decode


def without(data: bytes, *packets: int) -> bytes:
    """The stream without some TS packets."""
    pieces = [data[at : at + TS_PACKET] for at in range(0, len(data), TS_PACKET)]
    return b"".join(piece for place, piece in enumerate(pieces) if place not in packets)


def pid_of(data: bytes) -> int:
    with av.open(io.BytesIO(data)) as container:
        return int(container.streams.video[0].id)


def packets_of(data: bytes) -> list[int]:
    """Places of the video's TS packets."""
    pid = pid_of(data)
    rows = np.frombuffer(data, np.uint8).reshape(-1, TS_PACKET)
    found = ((rows[:, 1] & 0x1F).astype(int) << 8) + rows[:, 2]
    return [int(place) for place in np.flatnonzero(found == pid)]


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_every_picture_that_differs_is_marked(codec: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg cannot encode {codec}")
    data = encode("ts", codec, frames=FRAMES, fps=25, gop=GOP, speed=2, options={"crf": "12"})
    request = DecodeRequest(64, 64, SamplingGrid(STEP_US))
    whole = decode(data, request)
    assert not any(frame.info.corrupt for frame in whole.frames)
    truth = dict(zip((frame.slot for frame in whole.frames), whole.pixels.astype(int), strict=True))
    places = packets_of(data)
    draw = np.random.default_rng(0)
    differing = 0
    for lost in draw.choice(places[1:], 40, replace=False):
        try:
            hurt = decode(without(data, int(lost)), request)
        except CodecError:
            continue  # the first keyframe itself
        shift = (hurt.facts.first_us - whole.facts.first_us) // STEP_US
        for frame, pixels in zip(hurt.frames, hurt.pixels, strict=True):
            if np.abs(pixels - truth[frame.slot + shift]).max() > 3:
                differing += 1
                assert frame.info.corrupt, (lost, frame.slot)
        marked = {(frame.slot + shift) // GOP for frame in hurt.frames if frame.info.corrupt}
        assert len(marked) <= 2, "damage ends at the next keyframe"
    assert differing > 100


def test_a_repeated_and_an_announced_packet_are_no_loss() -> None:
    data = encode("ts", "libx264", frames=FRAMES, fps=25, gop=GOP, speed=2)
    pid, places = pid_of(data), packets_of(data)
    pieces = [data[at : at + TS_PACKET] for at in range(0, len(data), TS_PACKET)]
    assert breaks_of(data, pid) == []
    twice = [piece for place, piece in enumerate(pieces) for _ in range(1 + (place == places[5]))]
    assert breaks_of(b"".join(twice), pid) == []
    assert breaks_of(without(data, places[5]), pid) == [places[4] * TS_PACKET]
    assert breaks_of(without(data, *places[5:20]), pid) == [places[4] * TS_PACKET]  # counters repeat after 16
    error = bytearray(data)
    error[places[7] * TS_PACKET + 1] |= 0x80  # the receiver could not correct the packet
    assert breaks_of(bytes(error), pid) == [places[7] * TS_PACKET]
    assert breaks_of(b"", pid) == breaks_of(encode("mp4"), pid) == []


def test_an_undamaged_picture_of_a_grid_point_is_preferred() -> None:
    """Four frames a grid point, 14 to 17 and 18 to 21, of which 20 is a keyframe; 18 lost its end."""
    data = encode("ts", "libx264", frames=FRAMES, fps=25, gop=GOP, speed=2, options={"crf": "12"})
    request = DecodeRequest(64, 64, SamplingGrid(4 * STEP_US))
    with av.open(io.BytesIO(data)) as container:
        starts = [packet.pos for packet in container.demux(video=0) if packet.size]
    last = max(place for place in packets_of(data) if place * TS_PACKET < starts[GOP - 1])
    frames = decode(without(data, last), request).frames
    assert [frame.info.corrupt for frame in frames] == [False] * len(frames)
    assert [frame.info.index for frame in decode(data, request).frames][4:6] == [16, 20]
    assert [frame.info.index for frame in frames][4] in (14, 15)


def damaged_times(data: bytes) -> dict[int, bool]:
    """Of every picture, by its time in the container (microseconds): whether it is damaged."""
    facts = decode(data, DecodeRequest(64, 64, frames=tuple(range(FRAMES)), vectors=False))
    return {facts.facts.first_us + frame.info.time_us: frame.info.corrupt for frame in facts.frames}


def damaged_times_of_pieces(data: bytes, *, pipe: bool = False) -> dict[int, bool]:
    source = io.BytesIO(data)
    if pipe:
        source.seekable = lambda: False  # type: ignore[method-assign]
    times: dict[int, bool] = {}
    for piece in cut(source, keyframes=1):
        assert piece.container == "mpegts"
        times |= damaged_times(piece.data)
    return times


def assert_same_damage(pieces: dict[int, bool], raw: dict[int, bool]) -> None:
    """The same pictures are damaged, but for one or two right before a loss: FFmpeg marks the picture that it
    has not given away yet, which depends on how pictures lie in packets."""
    assert pieces.keys() == raw.keys()
    times = sorted(raw)
    both = [raw[time] and pieces[time] for time in times]
    for place, time in enumerate(times):
        assert raw[time] == pieces[time] or any(both[place + 1 : place + 3]), time


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
@pytest.mark.parametrize("speed", [pytest.param(0, marks=pytest.mark.long), 2])
def test_pieces_of_a_lossy_file_have_the_damage_of_the_file(codec: str, speed: int) -> None:
    """A still scene has pictures of a single TS packet, also at the end of a piece."""
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg cannot encode {codec}")
    data = encode("ts", codec, frames=FRAMES, fps=25, gop=GOP, speed=speed)
    assert not any(damaged_times_of_pieces(data).values())
    places = packets_of(data)
    draw = np.random.default_rng(0)
    seen = 0
    for lost in draw.choice(places[20:], min(24, len(places) - 20), replace=False):
        lossy = without(data, int(lost))
        raw, pieces = damaged_times(lossy), damaged_times_of_pieces(lossy)
        assert_same_damage(pieces, raw)
        seen += any(raw.values())
    assert seen > 12


def test_a_lossy_pipe_is_cut_with_its_damage() -> None:
    data = encode("ts", "libx264", frames=FRAMES, fps=25, gop=GOP, speed=2)
    lossy = without(data, *packets_of(data)[30:120:30])
    raw = damaged_times(lossy)
    assert any(raw.values())
    assert_same_damage(damaged_times_of_pieces(lossy, pipe=True), raw)


def test_counters_are_followed_through_pieces_and_foreign_bytes() -> None:
    data = encode("ts", "libx264", frames=FRAMES, fps=25, gop=GOP, speed=2)
    pid, places = pid_of(data), packets_of(data)
    lossy = without(data, places[9], places[40])
    expected = breaks_of(lossy, pid)
    assert len(expected) == 2
    for size in (1, 100, TS_PACKET, 1000):
        scan = CounterScan(pid)
        for at in range(0, len(lossy), size):
            scan.take(lossy[at : at + size])
        assert list(scan.breaks) == expected
    at = places[20] * TS_PACKET
    foreign = b"\x00\x47" + bytes(98)
    shifted = [place + (len(foreign) if place >= at else 0) for place in expected]
    assert breaks_of(lossy[:at] + foreign + lossy[at:], pid) == shifted
    assert breaks_of(foreign + lossy, pid) == [len(foreign) + place for place in expected]
