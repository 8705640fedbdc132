"""Derives times for a connection's first packets, which FFmpeg does not provide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

_LONGEST: Final = 32  # maximum number of packets without times; no order of B-pictures needs more


def with_start_times(packets: Iterable[Any]) -> Iterator[Any]:
    """Yield a connection's packets; the first packets get times derived from the packets that follow.

    FFmpeg gives the first picture of an RTP stream no time, and if pictures are reordered, it gives the next
    pictures no decoding time. These packets cannot be dropped: the first picture is a keyframe, without which
    nothing before the next keyframe can be decoded. The missing times continue the step of the packets that
    follow, which is exact for a camera with a constant rate.

    Args:
        packets: Packets of one video stream, in decoding order.
    """
    source = iter(packets)
    start: list[Any] = []
    for packet in source:
        start.append(packet)
        if len(start) == _LONGEST or not _lacks_times(start[0]) or not packet.size:
            break
        if len(start) > 2 and not any(map(_lacks_times, start[-2:])):
            _fill(start)
            break
    # MPEG-TS has no negative times, so the whole connection is shifted. A muxer would shift only the first
    # segment, whose last picture would then overlap the second segment's first picture.
    shift = max(0, -min((packet.dts for packet in start if packet.dts is not None), default=0))
    for packet in chain(start, source):
        if shift and not _lacks_times(packet):
            packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
        yield packet


def _lacks_times(packet: Any) -> bool:
    return packet.pts is None or packet.dts is None


def _fill(start: Sequence[Any]) -> None:
    """Fill in the missing times of all packets but the last two, which have times."""
    first, following = start[0], start[1:]
    step = start[-1].dts - start[-2].dts
    if step <= 0 or not first.is_keyframe or any(packet.pts is None for packet in following):
        return
    for place in range(len(start) - 3, -1, -1):
        start[place].dts = start[place + 1].dts - step
    # The first picture is shown before all following pictures, but not before it is decoded.
    first.pts = max(min(packet.pts for packet in following) - step, first.dts)
