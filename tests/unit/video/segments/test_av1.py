from __future__ import annotations

from functools import cache

import av
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lookout.video.segments.av1 import needed
from lookout.video.segments.container import Video
from tests.unit.video.segments.clips import encode

FRAMES = 40


@cache
def clip(speed: int) -> tuple[list[av.Packet], bytes, dict[int, np.ndarray]]:
    """Packets, extradata and every decoded picture's luma by time stamp."""
    data = encode("mp4", "libsvtav1", frames=FRAMES, gop=250, speed=speed, options={"preset": "12"})
    with Video(data, vectors=False) as video:
        packets, extradata = list(video.packets()), video.context.extradata or b""
    with Video(data, vectors=False) as video:
        return packets, extradata, {f.pts: f.to_ndarray() for f in video.frames()}


def decoded(packets: list[av.Packet], data: bytes) -> dict[int, np.ndarray]:
    """Pictures by time stamp, from a fresh decoder that is given these packets."""
    with Video(data, vectors=False) as video:
        found = [frame for packet in [*packets, None] for frame in video.decode(packet)]
    return {frame.pts: frame.to_ndarray() for frame in found}


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.sampled_from((0, 2)), st.sets(st.integers(0, FRAMES - 1), min_size=1, max_size=6))
def test_the_needed_packets_alone_give_the_same_pictures(speed: int, chosen: set[int]) -> None:
    packets, extradata, truth = clip(speed)
    data = encode("mp4", "libsvtav1", frames=1, options={"preset": "12"})  # any stream opens a decoder
    order = sorted(packet.pts for packet in packets)
    wanted = [order.index(packet.pts) in chosen for packet in packets]
    kept = needed([bytes(packet) for packet in packets], wanted, extradata)
    assert all(keep or not want for keep, want in zip(kept, wanted, strict=True))
    found = decoded([packet for packet, keep in zip(packets, kept, strict=True) if keep], data)
    for number in chosen:
        assert (found[order[number]] == truth[order[number]]).all()


def test_less_is_needed_than_is_there() -> None:
    packets, extradata, _ = clip(2)
    last = max(range(len(packets)), key=lambda i: packets[i].pts)
    kept = needed([bytes(p) for p in packets], [i == last for i in range(len(packets))], extradata)
    assert kept[0]
    assert kept[last]
    assert sum(kept) < FRAMES / 2


@pytest.mark.parametrize("seed", range(4))
def test_hostile_bytes_give_an_answer(seed: int) -> None:
    draw = np.random.default_rng(seed)
    packets, extradata, _ = clip(2)
    damaged = []
    for packet in packets:
        body = bytearray(bytes(packet))
        for at in draw.integers(0, len(body), 3):
            body[at] = draw.integers(0, 256)
        damaged.append(bytes(body))
    wanted = [number == len(packets) - 1 for number in range(len(packets))]
    kept = needed(damaged, wanted, extradata)
    assert len(kept) == len(packets)
    assert kept[-1]


def test_without_a_sequence_header_everything_is_needed() -> None:
    packets, _, _ = clip(2)
    bodies = [bytes(packet) for packet in packets[1:]]  # the first one holds the header
    assert needed(bodies, [False] * len(bodies)) == [True] * len(bodies)
