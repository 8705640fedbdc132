"""Damaged pictures against the undamaged decode: what differs is marked, and what is marked may differ."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from lookout.segments import CodecError, DecodeRequest, SamplingGrid, SoftwareDecoder
from lookout.segments.damage import TS_PACKET, breaks_of
from tests.unit.segments.clips import encode

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
