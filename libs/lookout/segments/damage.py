"""Which pictures of a segment are damaged: those that lost bytes, and those predicted from them.

FFmpeg marks the picture in which it concealed errors, and for H.264 only. What is predicted from it shows the
same errors without a mark, and a lost packet of an HEVC stream leaves no mark at all. So lost packets are
found by the continuity counters of MPEG-TS (ISO/IEC 13818-1, 2.4.3.3), and damage lasts until the next whole
keyframe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import av
import numpy as np

__all__ = ["DamageTrail", "breaks_of", "damaged_packets"]

TS_PACKET = 188
_SYNC = 0x47


def breaks_of(data: bytes, pid: int) -> list[int]:
    """Where packets of an MPEG-TS stream are missing or marked as broken.

    Args:
        data: The segment's bytes, whole TS packets.
        pid: The stream's packet identifier.

    Returns:
        Rising byte offsets: of the last packet before each loss, and of broken packets; empty where the bytes
        are no MPEG-TS.
    """
    count = len(data) // TS_PACKET
    rows = np.frombuffer(data, np.uint8, count * TS_PACKET).reshape(count, TS_PACKET)
    if not count or (rows[:, 0] != _SYNC).any():
        return []
    control = rows[:, 3] >> 4
    pids = ((rows[:, 1] & 0x1F).astype(int) << 8) + rows[:, 2]
    places = np.flatnonzero((pids == pid) & (control & 1 != 0))  # the counter counts packets with a payload
    counters = rows[places, 3].astype(int) & 0x0F
    announced = (control[places] & 2 != 0) & (rows[places, 4] > 0) & (rows[places, 5] & 0x80 != 0)
    steps = (counters[1:] - counters[:-1]) % 16
    twice = (steps == 0) & (rows[places[1:]] == rows[places[:-1]]).all(axis=1)  # a packet may be sent twice
    lost = (steps != 1) & ~twice & ~announced[1:]
    broken = rows[places, 1] & 0x80 != 0  # the transport error indicator
    damaged = broken | np.append(lost, False)
    return [int(place) * TS_PACKET for place in places[damaged]]


def damaged_packets(packets: Sequence[av.Packet], breaks: Sequence[int]) -> frozenset[int]:
    """Time stamps of the packets whose pictures are damaged, as far as the container tells.

    Args:
        packets: All packets of the segment, in decoding order.
        breaks: As `breaks_of` says. The packet that begins at or before a break lost its end, or the next
            lost its beginning, or one between them is missing: what follows depends on it either way.
    """
    damaged: set[int] = set()
    active, shown = False, 0
    waiting = list(breaks)
    before = False  # damage before the newest keyframe: its leading pictures depend on that
    for place, packet in enumerate(packets):
        following = packets[place + 1].pos if place + 1 < len(packets) else None
        broken = packet.is_corrupt  # at a lost packet of MPEG-TS this is the picture before
        while waiting and (following is None or following < 0 or waiting[0] < following):
            waiting.pop(0)
            broken = True
        if packet.is_keyframe:
            before, shown = active, packet.pts or 0
            active = False
        active = active or broken
        leading = before and packet.pts is not None and packet.pts < shown
        if (active or leading) and packet.pts is not None:
            damaged.add(packet.pts)
    return frozenset(damaged)


@dataclass(slots=True)
class DamageTrail:
    """Follows damage through decoded pictures, in presentation order.

    Attributes:
        packets: Time stamps of pictures whose packets are damaged.
    """

    packets: frozenset[int] = frozenset()
    _active: bool = False
    _refused: int = 0

    def reaches(self, pts: int | None, *, key: bool, concealed: bool, refused: int) -> bool:
        """Whether a picture is damaged.

        Args:
            pts: Its time stamp, ticks.
            key: It is a keyframe.
            concealed: The decoder says that the picture is damaged.
            refused: Packets that the decoder refused so far.
        """
        if key:
            self._active = False
        self._active = self._active or concealed or refused > self._refused
        self._refused = refused
        return self._active or (pts is not None and pts in self.packets)
